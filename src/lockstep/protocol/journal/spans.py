"""Spans of a trace (`--trace`): what began, and when it ended. While none is taken, each place costs one comparison."""

from __future__ import annotations

import time

MOST = 200_000
"""Some 20 MB of a file; a longer trace ends there."""
Span = tuple[str, str, int, int]
"""Track, name, begin, end; times of `time.monotonic_ns`."""


class Spans:
    """Those of this process; any thread may add some."""

    def __init__(self) -> None:
        self._taken: list[Span] | None = None

    def begin(self) -> int:
        """The time now; 0 where no trace is taken."""
        return time.monotonic_ns() if self._taken is not None else 0

    def end(self, track: str, name: str, begin_ns: int) -> None:
        """Add what began at `begin_ns`, a result of `begin`."""
        if begin_ns and self._taken is not None and len(self._taken) < MOST:
            self._taken.append((track, name, begin_ns, time.monotonic_ns()))

    def take(self) -> None:
        """From now on a trace is taken."""
        self._taken = []

    def taken(self) -> list[Span]:
        """What was taken; no more is."""
        found, self._taken = self._taken or [], None
        return found


spans = Spans()
