"""What `run.log` writes: one JSON object per line in the run folder, by rank 0; newest values for the progress line.

A line that cannot be written is told to the launcher, and the training goes on; the next one is tried again.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.machine.growing_time import growing_time
from lockstep.protocol.run_folder import read_lines
from lockstep.rank.run.position.earlier_lines import EarlierLines
from lockstep.rank.run.position.kept_file import append_line
from lockstep.rank.run.position.step_timer import Ledger


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
        self._recent: list[dict[str, Any]] = []
        """The lines of this step and the one before: the same on every rank, up to their times."""
        self.is_held = False
        """Whether what is logged is in the file already: the body of an epoch runs again up to where its steps go on."""

    def write(self, values: dict[str, float]) -> None:
        """Write one line: step, epoch, time, values."""
        self._shown |= values
        self._ledger.note(self._shown)
        if self.is_held:
            return
        step = self._ledger.step
        line: dict[str, Any] = {"step": step, "epoch": self._ledger.epoch, "time": growing_time(step)}
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        self._recent = [one for one in self._recent if one["step"] >= step - 1]
        self._recent.append(line | finite)
        self._write(line | finite)

    def recent(self, step: int) -> list[dict[str, Any]]:
        """The lines of `step`, which is this one or the one before."""
        return [line for line in self._recent if line["step"] == step]

    def catch_up(self, lines: Sequence[dict[str, Any]]) -> None:
        """Write those of `lines` that are not in the file: the rank that writes it was lost before it came to them."""
        if self._path is None or not lines:
            return
        there = Counter(map(_without_time, read_lines(self._path)))
        for line in lines:
            there[_without_time(line)] -= 1
            if there[_without_time(line)] < 0:
                self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        if self._path is not None:
            try:
                append_line(self._path, json.dumps(line))
            except OSError as error:
                if not self._lost:
                    self._lost = f"{self._path.name} cannot be written ({error.strerror}): values of run.log are lost"
                    self._ledger.lost(f"{self._lost}, the first in step {self._ledger.step}")


def _without_time(line: dict[str, Any]) -> str:
    return json.dumps({name: value for name, value in line.items() if name != "time"}, sort_keys=True)
