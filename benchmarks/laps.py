"""Where the time of a step goes, measured by the loop itself: a lap at the end of each phase."""

from __future__ import annotations

import time
from collections import defaultdict

FORWARD, BACKWARD, EXCHANGE, UPDATE, REST = "forward", "backward", "exchange", "optimizer", "rest"
PHASES = (FORWARD, BACKWARD, EXCHANGE, UPDATE, REST)


class Laps:
    """Nanoseconds of each phase, step by step. A phase may come several times in a step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, int]] = []
        self._now: dict[str, int] = defaultdict(int)
        self._last = 0

    def begin(self) -> None:
        """What follows belongs to the first phase that ends."""
        self._last = time.perf_counter_ns()

    def end(self, phase: str) -> None:
        """The time since the last call belongs to `phase`."""
        now = time.perf_counter_ns()
        self._now[phase] += now - self._last
        self._last = now

    def end_step(self) -> None:
        """Keep the step's phases."""
        self.steps.append(dict(self._now))
        self._now.clear()
