"""metrics.jsonl when the ranks started again: every step once, whatever the ranks before wrote."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from samebits.protocol.journal.ring import JournalReader, make_ring
from samebits.rank.position.metrics import MetricsFile
from samebits.rank.position.step_timer import StepTimer

SAVED_S = 100.0


def line(step: int, time_s: float = SAVED_S - 1, **values: float) -> str:
    return json.dumps({"step": step, "epoch": 1, "time": time_s, **values}) + "\n"


@pytest.fixture
def metrics(tmp_path: Path) -> tuple[MetricsFile, Path]:
    """The file of a second start: steps 1 to 5 are there, and the second start has said something already."""
    path = tmp_path / "metrics.jsonl"
    earlier = "".join([line(step, loss=step) for step in range(1, 6)]) + '{"step": 6, "ep'
    path.write_text(earlier)
    file = MetricsFile(path, StepTimer(None), len(earlier))
    file.write({"started": 2.0})
    return file, path


def read(path: Path) -> list[int]:
    return [json.loads(each)["step"] for each in path.read_text().splitlines()]


def test_a_run_that_goes_on_keeps_the_lines_up_to_its_state(metrics: tuple[MetricsFile, Path]) -> None:
    file, path = metrics
    file.earlier.keep_until(3, SAVED_S)
    assert read(path) == [1, 2, 3, 0], "the second start's own line stays"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    file.earlier.keep_until(1, SAVED_S)
    file.earlier.keep_none()
    assert read(path) == [1, 2, 3, 0], "only the first place counts, a state that is loaded later does not"


def test_a_run_that_begins_again_keeps_none(metrics: tuple[MetricsFile, Path]) -> None:
    file, path = metrics
    file.earlier.keep_none()
    assert read(path) == [0]
    MetricsFile(path, StepTimer(None), 5).earlier.keep_none()
    assert read(path) == [0], "a second samebits.init in the process finds its own lines"


def test_what_was_written_after_the_state_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(3) + line(3, SAVED_S + 1, accuracy=0.5))
    MetricsFile(path, StepTimer(None), path.stat().st_size).earlier.keep_until(3, SAVED_S)
    assert path.read_text() == line(3)


def test_a_first_start_touches_nothing(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(line(1))
    MetricsFile(path, StepTimer(None)).earlier.keep_none()
    MetricsFile(None, StepTimer(None), 5).earlier.keep_none()
    assert path.read_text() == line(1)


def test_a_file_that_cannot_be_written_again_is_told(tmp_path: Path) -> None:
    make_ring(tmp_path / "ring", 0)
    step_timer = StepTimer(tmp_path / "ring")
    MetricsFile(tmp_path / "gone" / "metrics.jsonl", step_timer, 5).earlier.keep_none()
    assert JournalReader(tmp_path / "ring").lost() == [
        "metrics.jsonl cannot be written again (No such file or directory): it has steps twice"
    ]
