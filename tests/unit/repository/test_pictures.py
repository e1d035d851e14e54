"""The pictures of README and guide: their data say what the pages say, and they can be drawn from them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PICTURES = Path(__file__).parents[3] / "docs" / "pictures"
LIMIT_BYTES = 150_000


def test_in_the_data_of_the_demo_ranks_were_killed_and_losses_and_bits_are_those_of_the_undisturbed_run() -> None:
    found = json.loads((PICTURES / "demo.json").read_text())
    run, undisturbed = found["run"], found["undisturbed"]
    assert {rank for _, rank in found["kills"]} == set(range(run["ranks"]))
    assert run["losses"] == undisturbed["losses"]
    assert run["bits"] == undisturbed["bits"]


def test_in_the_data_of_the_picture_plain_ddp_drifts_and_samebits_does_not() -> None:
    found = json.loads((PICTURES / "drift.json").read_text())
    ddp, ours, bug = found["ddp"], found["samebits"], found["bug"]
    assert ours["1"] == ours["2"] == ours["4"]
    assert len({tuple(losses) for losses in (*ddp.values(), bug["ddp on 2 ranks"])}) == 4
    assert any("the loss is multiplied by the number of ranks" in line for line in bug["verify"])


@pytest.mark.parametrize("name", ["demo", "drift"])
def test_a_picture_is_drawn_from_its_data(tmp_path: Path, name: str) -> None:
    target = tmp_path / f"{name}.png"
    subprocess.run([sys.executable, PICTURES / f"{name}.py", "--target", target], check=True, timeout=60, cwd=tmp_path)
    dark = [PICTURES / "demo-dark.png", target.with_stem("demo-dark")] if name == "demo" else []
    for path in (target, PICTURES / f"{name}.png", *dark):
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size < LIMIT_BYTES
