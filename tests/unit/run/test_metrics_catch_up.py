"""metrics.jsonl has every line once when another process goes on with it."""

from __future__ import annotations

import json
from pathlib import Path

from lockstep.run.position.ledger import Ledger
from lockstep.run.position.metrics import MetricsFile


def file_of(path: Path | None, step: int) -> MetricsFile:
    ledger = Ledger(None)
    ledger.step = step
    return MetricsFile(path, ledger)


def values(path: Path) -> list[tuple[int, float]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in lines]


def test_lines_that_the_dead_rank_did_not_come_to_are_written_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    dead, survivor = file_of(path, 7), file_of(None, 7)
    for file in (dead, survivor):
        file.write({"loss": 1.0})
        file.write({"loss": 1.0})  # twice the same is two lines
    survivor.write({"loss": 2.0})
    with path.open("a") as text:
        text.write('{"step": 7, "lo')  # it died while it wrote
    new = file_of(path, 7)
    new.catch_up(survivor.recent())
    new.write({"loss": 2.0})  # its script comes there again
    assert values(path) == [(7, 1.0), (7, 1.0), (7, 2.0)]
    new.is_held = False
    new.write({"loss": 3.0})
    assert values(path)[-1] == (7, 3.0)
    assert [line["loss"] for line in new.recent()] == [1.0, 1.0, 2.0, 3.0]


def test_only_the_newest_steps_are_kept(tmp_path: Path) -> None:
    ledger = Ledger(None)
    file = MetricsFile(None, ledger)
    for ledger.step in range(5):
        file.write({"loss": float(ledger.step)})
    assert [line["step"] for line in file.recent()] == [3, 4]
    new = file_of(tmp_path / "none.jsonl", 4)
    new.catch_up(file.recent())
    assert values(tmp_path / "none.jsonl") == [(3, 3.0), (4, 4.0)]
