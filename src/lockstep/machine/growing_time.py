"""The time of day, as numbers that only grow in one process and step: of two things, what was written later has the later one.

A clock may be set back between them. Which lines of metrics.jsonl a state has seen must not depend on it. States tell only
lines of their own step apart by the time, so from one step to the next the numbers may go back with the clock: else one state
of a clock that was ahead would keep all later times where it was.
"""

from __future__ import annotations

import time
from threading import Lock

STEP_S = 1e-5
"""How far apart two numbers of one step are at least; a file's time and a float tell them apart."""


class GrowingTime:
    """The numbers of one process. Any thread may ask."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._step = -1
        self._latest_s = 0.0

    def now(self, step: int) -> float:
        """time.time(), or a little more than what was told last in this step where the clock does not show more."""
        with self._lock:
            latest_s = self._latest_s if step == self._step else 0.0
            self._step, self._latest_s = step, max(time.time(), latest_s + STEP_S)
            return self._latest_s

    def go_on_from(self, time_s: float, step: int) -> None:
        """In this step, tell only what is later than `time_s`, which another process was told."""
        with self._lock:
            self._step, self._latest_s = step, max(self._latest_s if step == self._step else 0.0, time_s)


_process = GrowingTime()
growing_time = _process.now
go_on_from = _process.go_on_from
