"""When a stage did what: to draw a step, and to explain why a pipeline is slow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

SURE = 0.9
"""Of the time until the last pass's first message: who looks for this one later than it came looks earlier next time."""


class StageClock:
    """One rank's clock. Times are `time.monotonic`, which all processes of a node share."""

    def __init__(self) -> None:
        self.last_pass: list[tuple[str, int, float, float]] = []
        """Kind, lane, begin and end of each action of the last pass, then of the waits (W, lane -1) inside them."""
        self._pass: list[tuple[str, int, float, float]] = []
        self.busy_s: dict[str, float] = {}
        """Seconds of all actions of a kind, including waits."""
        self.waited_s = 0.0
        """Seconds of waiting for other stages."""
        self.num_passes = 0
        self._waited_since = 0.0
        self._began = 0.0
        self.spare_s = 0.0
        """How long after its begin a pass can expect the first message: a little less than it took in the last one."""

    def begin_pass(self) -> None:
        """Note that a pass begins."""
        self._began = time.monotonic()

    def note(self, kind: str, lane: int, began: float) -> None:
        """Note an action that has ended."""
        now = time.monotonic()
        self._pass.append((kind, lane, began, now))
        self.busy_s[kind] = self.busy_s.get(kind, 0.0) + now - began

    def end_pass(self, waits: Sequence[tuple[float, float]]) -> None:
        """End a pass, all actions of which are done; `waits` are the begin and end of each wait in it."""
        self.last_pass, self._pass = [*self._pass, *(("W", -1, begin, end) for begin, end in waits)], []
        self.spare_s = SURE * (waits[0][1] - self._began) if waits else 0.0
        waited_s = sum(end - begin for begin, end in waits)
        self.waited_s += waited_s
        self._waited_since += waited_s
        self.num_passes += 1

    def take_waited_s(self) -> float:
        """Return the seconds of waiting since the last call."""
        waited, self._waited_since = self._waited_since, 0.0
        return waited

    def report(self) -> dict[str, Any]:
        """Return the times as JSON values."""
        return {
            "forward_s": self.busy_s.get("F", 0.0),
            "backward_s": self.busy_s.get("B", 0.0),
            "wait_s": self.waited_s,
            "passes": self.num_passes,
            "timeline": [list(action) for action in self.last_pass],
        }
