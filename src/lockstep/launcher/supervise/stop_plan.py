"""What is to be sent to ranks that are to end, and for which failure. `lockstep.launcher.stopping` decides the times."""

from __future__ import annotations

import time
from dataclasses import dataclass

from lockstep.launcher import stopping
from lockstep.protocol.journal.failure import FailureKind


@dataclass
class StopPlan:
    """Of one world of ranks."""

    sends: stopping.Plan = ()
    _kind: FailureKind | None = None

    def __bool__(self) -> bool:
        """Whether the ranks are to end."""
        return bool(self.sends or self._kind)

    @property
    def is_for_a_peer(self) -> bool:
        """Whether all that is known here is that a rank lost another one."""
        return self._kind is FailureKind.PEER

    def fail(self, number: int, kind: FailureKind, running: frozenset[int]) -> None:
        """A rank has failed and may still run: the others are to end, unless they are already."""
        if self._takes(kind):
            self.sends = stopping.after_failure(time.monotonic(), number, kind, running)

    def end_badly(self, running: frozenset[int], *, at_once: bool = False) -> None:
        """A rank has ended with a code other than 0, or by a signal.

        Args:
            running: the others.
            at_once: as in `stopping.after_bad_exit`.
        """
        if self._takes(FailureKind.SCRIPT):
            self.sends = stopping.after_bad_exit(time.monotonic(), running, at_once=at_once)

    def _takes(self, kind: FailureKind) -> bool:
        """Let the first failure decide; but a real one replaces the plan for a rank that only lost its peer."""
        if self._kind not in (None, FailureKind.PEER) or (self._kind is FailureKind.PEER and kind is FailureKind.PEER):
            return False
        self._kind = kind
        return True

    def due(self, now: float) -> stopping.Plan:
        """What to send now, in order; it is not told again."""
        ready, self.sends = stopping.due(self.sends, now)
        return ready
