"""When a stage did what: to draw a step, and to explain why a pipeline is slow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

SURE = 0.9
"""Of the time until the last pass's first message: a stage that looks late sees a shorter wait, and looks earlier next time."""


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
        self._due_s: dict[str, float] = {}
        """When the first action of a kind was due in this pass."""
        self._spare_s: dict[str, float] = {}

    def begin_pass(self) -> None:
        self._due_s.clear()

    def spare_s(self, kind: str) -> float:
        """How long the pass's first action of a kind, which is due now, will wait for its message.

        It is a little less than the last pass's waited. 0 where nothing is known, and for a later action of the kind.
        """
        if kind in self._due_s:
            return 0.0
        self._due_s[kind] = time.monotonic()
        return self._spare_s.pop(kind, 0.0)

    def note(self, kind: str, lane: int, began: float) -> None:
        now = time.monotonic()
        self._pass.append((kind, lane, began, now))
        self.busy_s[kind] = self.busy_s.get(kind, 0.0) + now - began

    def end_pass(self, waits: Sequence[tuple[float, float]]) -> None:
        """End a pass, all actions of which are done; `waits` are the begin and end of each wait in it."""
        self.last_pass, self._pass = [*self._pass, *(("W", -1, begin, end) for begin, end in waits)], []
        for kind, due in self._due_s.items():
            end = next((end for begin, end in waits if begin >= due), due)
            self._spare_s[kind] = SURE * (end - due)
        waited_s = sum(end - begin for begin, end in waits)
        self.waited_s += waited_s
        self._waited_since += waited_s
        self.num_passes += 1

    def take_waited_s(self) -> float:
        """Return the seconds of waiting since the last call."""
        waited, self._waited_since = self._waited_since, 0.0
        return waited

    def report(self) -> dict[str, Any]:
        return {
            "forward_s": self.busy_s.get("F", 0.0),
            "backward_s": self.busy_s.get("B", 0.0),
            "wait_s": self.waited_s,
            "passes": self.num_passes,
            "timeline": [list(action) for action in self.last_pass],
        }
