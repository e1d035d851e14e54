"""What `run.log` writes: one JSON object per line in the run folder, by rank 0; newest values for the progress line.

A line that cannot be written is told to the launcher, and the training goes on; the next one is tried again.
"""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from typing import Any

from lockstep.growing_time import go_on_from, growing_time
from lockstep.run.position.earlier_lines import EarlierLines
from lockstep.run.position.kept_file import append_line
from lockstep.run.position.ledger import Ledger

MOST_RECENT = 10_000
"""How many lines are kept for a rank that may have to write them."""
MOST_BYTES = 4 << 20
"""How much of the file's end is looked at for lines that are there already."""


class MetricsFile:
    """Appends to `metrics.jsonl`; does nothing where there is no folder or this is not rank 0.

    Args:
        path: the file; None where nothing is written.
        ledger: it shows the newest values.
        earlier_bytes: how much of the file was written by ranks before these.
    """

    def __init__(self, path: Path | None, ledger: Ledger, earlier_bytes: int = 0) -> None:
        self._path, self._ledger = path, ledger
        self.earlier = EarlierLines(path, earlier_bytes, ledger)
        self._shown: dict[str, float] = {}
        self._lost = ""
        self._recent: deque[dict[str, Any]] = deque(maxlen=MOST_RECENT)
        self.is_held = False
        """Whether the others have come further than this rank, which took a dead one's place: then nothing is new."""

    def write(self, values: dict[str, float]) -> None:
        """Write one line: step, epoch, time, values."""
        self._shown |= values
        self._ledger.note(self._shown)
        if self.is_held:
            return
        step = self._ledger.step
        line: dict[str, Any] = {"step": step, "epoch": self._ledger.epoch, "time": growing_time(step)}
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._recent.append(line | finite)
        self._write(line | finite)

    def recent(self) -> list[dict[str, Any]]:
        """The newest lines: those of this step and the one before. The same on every rank, up to their times."""
        return [line for line in self._recent if line["step"] >= self._ledger.step - 1]

    def catch_up(self, lines: list[dict[str, Any]]) -> None:
        """Write those of the newest `lines` that are not in the file yet: its writer died before it came to them.

        From here on nothing is written until `is_held` is false again.
        """
        self._recent.extend(lines)
        for line in lines:
            go_on_from(line["time"], line["step"])
        self.is_held = True
        if self._path is None:
            return
        _cut_half_line(self._path)
        there = Counter(map(_without_time, _last_lines(self._path)))
        for line in lines:
            if there[_without_time(line)]:
                there[_without_time(line)] -= 1
            else:
                self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        if self._path is not None:
            try:
                append_line(self._path, json.dumps(line))
            except OSError as error:
                if not self._lost:
                    self._lost = f"{self._path.name} cannot be written ({error.strerror}): values of run.log are lost"
                    self._ledger.lost(f"{self._lost}, the first in step {self._ledger.step}")


def _cut_half_line(path: Path) -> None:
    """Remove what a killed rank wrote of a line."""
    with suppress(OSError), path.open("r+b") as file:
        data = file.read()
        file.truncate(data.rfind(b"\n") + 1)


def _last_lines(path: Path) -> list[dict[str, Any]]:
    """The newest lines of the file."""
    try:
        data = path.read_bytes()[-MOST_BYTES:]
    except OSError:
        return []
    found = []
    for line in data.splitlines():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def _without_time(line: dict[str, Any]) -> str:
    return json.dumps({name: value for name, value in line.items() if name != "time"}, sort_keys=True)
