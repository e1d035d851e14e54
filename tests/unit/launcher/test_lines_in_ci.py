"""Lines of the launcher where no terminal is: a time before each, and what GitHub Actions shows beside the line of a script."""

from __future__ import annotations

import io
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from samebits.launcher.blame import RankEnd
from samebits.launcher.terminal.failure_block import annotation
from samebits.launcher.terminal.report import Line
from samebits.launcher.terminal.terminal import OUT, Console, Terminal
from samebits.protocol.journal.failure import Failure, FailureKind
from samebits.protocol.journal.ring import Phase, Record
from tests.support.launching import run_script

DOING = Record(7, 1, 20, 1, Phase.UPDATE, "optimizer", "/work/run/train.py", 31)
END = RankEnd(1, 1, 0, 0, stopped=False, failure=None)


def written(variables: dict[str, str]) -> list[str]:
    reading, writing = os.pipe()
    terminal = Terminal(variables, writing, writing)
    Console(terminal).line(Line("done", "10 steps"))
    Console(terminal).block("FAILED    rank 1\n\n  | Traceback")
    terminal.pass_through(OUT, b"of the script\n")
    terminal.say("[rank 1] of the script")
    os.close(writing)
    with os.fdopen(reading) as file:
        return file.read().splitlines()


def test_in_a_pipe_each_line_of_the_launcher_begins_with_its_time_and_none_of_the_scripts() -> None:
    lines, plain = written({}), written({"SAMEBITS_TIMES": "off"})
    assert plain == [
        "done      10 steps", "FAILED    rank 1", "", "  | Traceback", "of the script", "[rank 1] of the script"
    ]  # fmt: skip
    stamped = [0, 1, 3]
    assert [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in lines] == plain
    assert [number for number, line in enumerate(lines) if line != plain[number]] == stamped


def test_in_a_notebook_no_line_has_a_time() -> None:
    out = io.StringIO()
    Console(Terminal({}, out, out)).line(Line("done", "10 steps"))
    assert out.getvalue() == "done      10 steps\n"


def test_a_failure_is_an_annotation_of_its_line() -> None:
    error = "KeyError: '100%\nb'"
    failure = Failure(1, FailureKind.SCRIPT, error, "", "/work/run/a,b:c.py", 19, "", None, 0)
    assert annotation(replace(END, failure=failure), DOING, "/work/run") == (
        "::error file=a%2Cb%3Ac.py,line=19::rank 1, in step 20 (19 done), optimizer: KeyError: '100%25%0Ab'"
    )
    killed = replace(END, code=137, signal=9)
    assert annotation(killed, DOING, "").startswith("::error file=/work/run/train.py,line=31::rank 1, in step 20 ")
    assert annotation(killed, None, "") == "::error::rank 1: killed by signal 9 (SIGKILL)"


@pytest.mark.parametrize("is_there", [True, False])
def test_only_under_github_actions_a_failed_run_prints_one(tmp_path: Path, is_there: bool) -> None:
    env = {"GITHUB_ACTIONS": "true" if is_there else "", "GITHUB_WORKSPACE": str(tmp_path)}
    ended = run_script(tmp_path, "raise ValueError('100%')", "-n", "1", env=env)
    assert ended.code == 1
    found = [line for line in ended.err.splitlines() if line.startswith("::")]
    assert found == ["::error file=script.py,line=1::rank 0: ValueError: 100%25"] * is_there
