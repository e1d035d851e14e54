"""A clock that is set back between a line of metrics.jsonl and a state."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from samebits.machine.clocks import growing_time, resume_from
from samebits.rank.position.metrics import MetricsFile
from samebits.rank.position.step_timer import StepTimer


def test_it_only_grows_and_shows_the_clock_where_that_is_later(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = growing_time(3)
    monkeypatch.setattr(time, "time", lambda: begin - 7200.0)
    told = [growing_time(3) for _ in range(1000)]
    assert begin < told[0] < told[-1] < begin + 1
    assert len(set(told)) == 1000
    resume_from(begin + 50.0, 3)
    resume_from(begin + 20.0, 3)
    assert begin + 50 < growing_time(3) < begin + 51
    monkeypatch.setattr(time, "time", lambda: begin + 3600.0)
    assert growing_time(3) == begin + 3600


def test_a_files_time_tells_two_of_them_apart(tmp_path: Path) -> None:
    file = tmp_path / "state"
    file.touch()
    for _ in range(100):
        before, saved, after = growing_time(3), growing_time(3), growing_time(3)
        os.utime(file, (saved, saved))
        assert before < file.stat().st_mtime < after


def test_a_state_has_the_lines_before_it_and_none_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, step_timer = tmp_path / "metrics.jsonl", StepTimer(None)
    step_timer.step = 3
    now = growing_time(3) + 86400.0
    file = MetricsFile(path, step_timer)
    clock = iter([now, now - 3600.0, now - 1800.0])  # when it logs, saves, and logs again
    monkeypatch.setattr(time, "time", lambda: next(clock))
    file.write({"loss": 1.0})
    saved_s = growing_time(3)
    file.write({"accuracy": 0.5})
    MetricsFile(path, step_timer, path.stat().st_size).earlier.keep_until(3, saved_s)
    assert [sorted(json.loads(line)) for line in path.read_text().splitlines()] == [["epoch", "loss", "step", "time"]]


def test_a_state_of_a_clock_that_was_ahead_holds_back_no_other_steps(tmp_path: Path) -> None:
    path, step_timer = tmp_path / "metrics.jsonl", StepTimer(None)
    file, ahead_s = MetricsFile(path, step_timer), time.time() + 86400.0
    step_timer.step = 3
    file.earlier.keep_until(3, ahead_s)
    for step_timer.step in (3, 4, 5):
        file.write({"loss": 1.0})
    told = [json.loads(line)["time"] for line in path.read_text().splitlines()]
    assert told[0] > ahead_s
    assert all(abs(one - time.time()) < 3600 for one in told[1:])
