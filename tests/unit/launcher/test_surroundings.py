"""What the machine does to ranks: real processes, bound and killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from samebits.launcher.blame import RankEnd
from samebits.launcher.supervise.surroundings import RECENT_S, Surroundings
from samebits.launcher.terminal.cases import Cases
from samebits.launcher.terminal.terminal import Console
from samebits.machine.memory_pressure import Shortage, read_memory_pressure
from samebits.protocol.case import cases_in

SLEEPS = [sys.executable, "-c", "import time; time.sleep(100)"]


@pytest.fixture
def pids() -> Iterator[dict[int, int]]:
    ranks = [subprocess.Popen(SLEEPS) for _ in range(2)]
    yield {number: rank.pid for number, rank in enumerate(ranks)}
    for rank in ranks:
        rank.kill()
        rank.wait()


@pytest.fixture
def surroundings(tmp_path: Path) -> Surroundings:
    return Surroundings(Console(None), Cases(tmp_path / "findings.jsonl"))


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="the machine has one core")
def test_ranks_that_are_bound_to_one_core_are_told_once(surroundings: Surroundings, pids: dict[int, int]) -> None:
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(pids[0], {core})
    surroundings.look(pids)
    assert cases_in(surroundings.cases.path) == [], "the other one may use all cores"
    os.sched_setaffinity(pids[1], {core})
    for _ in range(2):
        surroundings._next_s = 0.0
        surroundings.look(pids)
    (case,) = cases_in(surroundings.cases.path)
    assert (case.finding, case.ranks) == ("shared-core", (0, 1))
    assert f"may use core {core} only" in case.said


def test_a_rank_that_somebody_killed_is_no_finding_but_it_is_said_why(surroundings: Surroundings) -> None:
    surroundings.ended(RankEnd(1, 128 + signal.SIGKILL, signal.SIGKILL, 1, False, None))
    assert surroundings.known[1].why_killed.startswith("sent by another process")
    assert cases_in(surroundings.cases.path) == []


def test_a_kill_that_the_kernel_counted_long_before_was_another_ones(
    surroundings: Surroundings, pids: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = read_memory_pressure()
    short = replace(calm, kills=calm.kills + 1)
    monkeypatch.setattr("samebits.launcher.supervise.surroundings.read_memory_pressure", lambda: short)
    for _ in range(2):
        surroundings._pressures = [(-RECENT_S, reading) for _, reading in surroundings._pressures]
        surroundings._next_s = 0.0
        surroundings.look(pids)
    surroundings.ended(RankEnd(1, 128 + signal.SIGKILL, signal.SIGKILL, 1, False, None))
    assert cases_in(surroundings.cases.path) == []
    monkeypatch.setattr(
        "samebits.launcher.supervise.surroundings.read_memory_pressure", lambda: replace(short, kills=99)
    )
    surroundings.ended(RankEnd(0, 128 + signal.SIGKILL, signal.SIGKILL, 1, False, None))
    assert [case.finding for case in cases_in(surroundings.cases.path)] == ["killed-for-memory"]


def test_a_rank_that_grew_after_the_last_look_is_told_with_what_it_held(
    surroundings: Surroundings, pids: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    surroundings.look(pids)
    monkeypatch.setattr("samebits.launcher.supervise.surroundings.shortage", lambda before, now: Shortage.GROUP)
    surroundings.ended(RankEnd(1, 128 + signal.SIGKILL, signal.SIGKILL, 1, False, None, peak_bytes=1_800_000_000))
    assert re.search(r"rank 1 held 1\.80 GB, rank 0 0\.\d\d GB", surroundings.known[1].why_killed)


def test_a_crash_is_a_finding_unless_the_launcher_sent_the_signal(surroundings: Surroundings) -> None:
    surroundings.ended(RankEnd(0, 128 + signal.SIGSEGV, signal.SIGSEGV, 1, True, None))
    assert cases_in(surroundings.cases.path) == []
    surroundings.ended(RankEnd(0, 128 + signal.SIGSEGV, signal.SIGSEGV, 1, False, None))
    assert [case.finding for case in cases_in(surroundings.cases.path)] == ["crash"]
