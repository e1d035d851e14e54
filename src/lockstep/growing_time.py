"""The time of day, as numbers that only grow in one process: of two things, what was written later has the later one.

A clock may be set back between them. Which lines of metrics.jsonl a state has seen must not depend on it.
"""

from __future__ import annotations

import time
from threading import Lock

STEP_S = 1e-5
"""How far apart two numbers are at least; a file's time and a float tell them apart."""


class GrowingTime:
    """The numbers of one process. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._latest_s = 0.0

    def now(self) -> float:
        """time.time(), or a little more than what was told last where the clock does not show more."""
        with self._lock:
            self._latest_s = max(time.time(), self._latest_s + STEP_S)
            return self._latest_s

    def go_on_from(self, time_s: float) -> None:
        """Tell only what is later than `time_s`, which another process was told."""
        with self._lock:
            self._latest_s = max(self._latest_s, time_s)


_process = GrowingTime()
growing_time = _process.now
go_on_from = _process.go_on_from
