"""Which finding an end or a stall is, and that each one is written as its page needs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from samebits.launcher.diagnosis.findings import FINDINGS, End, finding_of_end, finding_of_stall
from samebits.launcher.diagnosis.scene import Doing, Life, RankScene, Wait
from samebits.launcher.diagnosis.stalls import Holdup, Judgement, Standing
from samebits.machine.memory_pressure import Shortage
from samebits.protocol.case import Case, cases_in, latest, names_of
from samebits.protocol.journal.failure import Failure, FailureKind
from samebits.protocol.journal.ring import Phase


def failure(error: str, finding: str = "") -> Failure:
    return Failure(1, FailureKind.SCRIPT, error, "", "", 0, None, 0, finding=finding)


@pytest.mark.parametrize(
    ("end", "name"),
    [
        (End(None, 9, Shortage.HOST), "killed-for-memory"),
        (End(None, 9), None),
        (End(None, 11), "crash"),
        (End(None, 15), None),
        (End(failure("ValueError: no"), 0), None),
        (End(failure("OSError: [Errno 28] No space left on device: 'a'"), 0), "full-disk"),
        (End(failure("RuntimeError: [enforce fail] Unable to find address for: eth7"), 0), "wrong-interface"),
        (End(failure("UsageError: x", "mismatched-collective"), 0), "mismatched-collective"),
        (End(failure("UsageError: x", "of another version"), 0), None),
    ],
)
def test_the_end_of_a_rank_says_what_it_was(end: End, name: str | None) -> None:
    found = finding_of_end(end)
    assert (found.name if found is not None else None) == name


def stall(
    phase: Phase | None, life: Life = Life.RUNS, what: str = "barrier", standing: Standing = Standing.STALLED
) -> str:
    doing = Doing(phase, "", 3, "train.py:3", 9.0, None) if phase is not None else None
    scenes = [RankScene(0, Life.RUNS, None, Wait(9.0, frozenset({1}), what)), RankScene(1, life, doing, None)]
    holdup = Holdup(frozenset({1}), frozenset({0}), 9.0)
    return finding_of_stall(Judgement(standing, holdup, frozenset({1})), scenes).name


def test_a_stall_is_named_by_what_the_suspect_does() -> None:
    assert stall(Phase.DATA) == "stalled-in-data"
    assert stall(Phase.COMPUTE) == stall(None) == "stalled-in-script"
    assert stall(Phase.DATA, Life.STOPPED) == "stopped-process"
    assert stall(None, what="the meeting of a group with rank 1") == "missing-rank"
    assert stall(Phase.EVALUATE, standing=Standing.SLOW) == "busy-rank"


@pytest.mark.parametrize("name", FINDINGS)
def test_each_finding_has_a_page_with_its_words(name: str) -> None:
    finding, page = FINDINGS[name], (Path(__file__).parents[4] / "docs" / "findings" / f"{name}.md").read_text()
    assert not finding.title.endswith(".")
    for text in (finding.why, *finding.what_to_do):
        assert text.endswith("."), text
        assert text.count("`") % 2 == 0, text
    steps = "\n".join(f"{number}. {step}" for number, step in enumerate(finding.what_to_do, 1))
    assert page.startswith(f"# {finding.title}\n\n`{name}`\n\n## What is seen\n\n```text\n")
    assert page.endswith(f"\n\n## Why\n\n{finding.why}\n\n## What to do\n\n{steps}\n")


def test_cases_are_read_as_they_were_kept_and_damage_is_left_out(tmp_path: Path) -> None:
    path, cases = (
        tmp_path / "findings.jsonl",
        [Case("crash", "rank 1: x", (1,)), Case("nan-loss", "y"), Case("crash", "z")],
    )
    for case in cases:
        case.add_to(path)
    with path.open("a") as file:
        file.write('{"finding": 3, "said": "x", "ranks": []}\n[1]\nnot json\n{"finding": "half')
    assert cases_in(path) == cases
    assert names_of(cases) == ["crash", "nan-loss"]
    path.write_text('{"finding": "x\\nhelp: evil", "said": "y", "ranks": []}\n')
    assert cases_in(path) == []  # a name that is none
    assert cases_in(tmp_path / "none") == []


def test_help_after_the_end_is_not_about_a_process() -> None:
    assert "kill -CONT" not in FINDINGS["stopped-process"].aid_afterwards
    assert all("PID" not in finding.aid_afterwards for finding in FINDINGS.values())


def test_a_wait_that_was_said_again_is_told_once_and_another_one_too() -> None:
    first = Case("stalled-in-script", "stalled 5 s: rank 1 has not reached step 7 (for 5 s)", (1,))
    again = Case("stalled-in-script", "stalled 10 s: rank 1 has not reached step 7 (for 10 s)", (1,))
    other = Case("stalled-in-script", "stalled 5 s: rank 1 has not reached step 9 (for 5 s)", (1,))
    assert latest([first, again, other]) == [again, other]
