"""What `run.log` writes: one JSON object per line in the run folder, by rank 0; the newest values for the progress line."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from lockstep.journal.private_file import open_private
from lockstep.run.ledger import Ledger


class MetricsFile:
    """Appends to `metrics.jsonl`; does nothing where there is no folder or this is not rank 0."""

    def __init__(self, path: Path | None, ledger: Ledger) -> None:
        self._path, self._ledger = path, ledger
        self._shown: dict[str, float] = {}

    def write(self, values: dict[str, float]) -> None:
        """One line: step, epoch, time, values."""
        self._shown |= values
        self._ledger.note(self._shown)
        if self._path is not None:
            line: dict[str, Any] = {"step": self._ledger.step, "epoch": self._ledger.epoch, "time": time.time()}
            finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
            with open_private(self._path, "a") as file:
                file.write(json.dumps(line | finite) + "\n")
