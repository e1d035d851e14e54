"""metrics.jsonl has every line once when another process goes on with it."""

from __future__ import annotations

import json
from pathlib import Path

from samebits.rank.position.metrics import MetricsFile
from samebits.rank.position.step_timer import StepTimer


def file_of(path: Path | None, step: int) -> MetricsFile:
    step_timer = StepTimer(None)
    step_timer.step = step
    return MetricsFile(path, step_timer)


def values(path: Path) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines]


def test_lines_that_the_lost_rank_did_not_come_to_are_written_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    dead, survivor = file_of(path, 7), file_of(None, 7)
    for file in (dead, survivor):
        file.write({"loss": 1.0})
        file.write({"loss": 1.0})  # twice the same is two lines
    survivor.write({"loss": 2.0})
    file_of(path, 7).catch_up(survivor.recent(7))
    assert values(path) == [(7, 1.0), (7, 1.0), (7, 2.0)]


def test_lines_are_known_of_this_step_and_the_one_before() -> None:
    step_timer = StepTimer(None)
    file = MetricsFile(None, step_timer)
    for step_timer.step in range(5):
        file.write({"loss": float(step_timer.step)})
    assert [[line["loss"] for line in file.recent(step)] for step in (2, 3, 4)] == [[], [3.0], [4.0]]
