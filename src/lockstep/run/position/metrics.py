"""What `run.log` writes: one JSON object per line in the run folder, by rank 0; newest values for the progress line.

A line that cannot be written is told to the launcher, and the training goes on; the next one is tried again.
"""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from lockstep.run.position.earlier_lines import EarlierLines
from lockstep.run.position.kept_file import append_line
from lockstep.run.position.ledger import Ledger


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

    def write(self, values: dict[str, float]) -> None:
        """Write one line: step, epoch, time, values."""
        self._shown |= values
        self._ledger.note(self._shown)
        if self._path is not None:
            line: dict[str, Any] = {"step": self._ledger.step, "epoch": self._ledger.epoch, "time": time.time()}
            finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
            try:
                append_line(self._path, json.dumps(line | finite))
            except OSError as error:
                if not self._lost:
                    self._lost = f"{self._path.name} cannot be written ({error.strerror}): values of run.log are lost"
                    self._ledger.lost(f"{self._lost}, the first in step {self._ledger.step}")
