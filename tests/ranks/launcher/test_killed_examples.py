"""The first examples that people run: killed once per rank behind the lanes of a step, each comes back from its step."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.launching import Finished, run_script

pytestmark = [pytest.mark.ranks, pytest.mark.thorough]

EXAMPLES = Path(__file__).parents[3] / "examples"
KILL = """{indent}import os, sys
{indent}if len(sys.argv) > 1 and run.rank == int(sys.argv[1]) and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
{indent}    os.kill(os.getpid(), 9)
"""
PLACES = {
    "a step": (r"^( +)optimizer\.step\(\)\n", "step.number == 40"),
    "behind the steps": (r"^( +)run\.print\(", "epoch == 1"),
    "an evaluation": (r"^( +)accuracy = tally\.mean\(\)", "epoch == 1"),
}
STEP = {"a step": 40, "an evaluation": 46, "behind the steps": 58}
"""From which one it goes on."""


def killed(script: str, place: str) -> str:
    pattern, when = PLACES[place]
    text = (EXAMPLES / script).read_text()
    found = re.search(pattern, text, re.MULTILINE)
    assert found is not None
    indent = found[1]
    kill = KILL.format(indent=indent + "    ")
    text = text[: found.start()] + f"{indent}if {when}:\n{kill}" + text[found.start() :]
    return text.replace("parser.parse_args()", "parser.parse_args([])").replace("default=12", "default=3")


def bits(ended: Finished) -> str:
    return ended.bits


@pytest.mark.parametrize(
    ("script", "place"),
    [
        ("quickstart.py", "a step"),
        ("digits.py", "a step"),
        ("digits.py", "an evaluation"),
        ("quickstart.py", "behind the steps"),
    ],
)
def test_an_example_comes_back_from_its_step_whichever_rank_is_killed(tmp_path: Path, script: str, place: str) -> None:
    ends = []
    for who in ((), ("0",), ("1",)):
        folder = tmp_path / "-".join(("rank", *who))
        folder.mkdir()
        ends.append(run_script(folder, killed(script, place), "-n", "2", args=who))
    assert len({bits(one) for one in ends}) == 1
    for one in ends[1:]:
        assert one.folder is not None
        [told] = [json.loads(line) for line in (one.folder / "restarts.jsonl").read_text().splitlines()]
        assert told["in_memory"], one.err
        assert (told["step"], told["steps_again"]) == (STEP[place], 0)
