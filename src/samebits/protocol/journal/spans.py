"""Ranges of time for a trace (`--trace`) and for a torch.profiler of the script's: what a thread did or waited for, from when to when.

While neither is active, each place costs two reads of attributes.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Self

MOST = 200_000
"""Some 20 MB of a file; a longer trace ends there."""
Span = tuple[str, str, int, int]
"""Track, name, begin, end; times of `time.monotonic_ns`."""


class NoRange:
    """What `Spans.range` returns while nobody looks."""

    def end(self) -> None:
        """Do nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Do nothing, in as few calls as can be: every exchange comes here."""


NO_RANGE = NoRange()


class Spans:
    """Those of this process; any thread may add some."""

    def __init__(self) -> None:
        self.is_taken = False
        """Whether a trace is taken."""
        self.profiler: Any = None
        """`torch.autograd.profiler`, set by a rank: this folder imports no torch."""
        self._found: list[Span] = []

    def are_shown(self) -> bool:
        """Whether a trace is taken, or a torch.profiler is active."""
        return self.is_taken or (self.profiler is not None and self.profiler._is_profiler_enabled)  # noqa: SLF001 - its function costs more

    def range(self, track: str, title: str) -> NoRange:
        """A range of this thread from here to its `end`, or to the end of a `with`; ranges may end in any order.

        Args:
            track: the row of a trace for the main thread. Other threads have a row each, by their names.
            title: as both show it.
        """
        return Range(self, track, title) if self.are_shown() else NO_RANGE

    def add(self, span: Span) -> None:
        """Add what has ended."""
        if self.is_taken and len(self._found) < MOST:
            self._found.append(span)

    def take(self) -> None:
        """Take a trace from now on."""
        self._found, self.is_taken = [], True

    def taken(self) -> list[Span]:
        """Return what was taken; take no more."""
        self.is_taken = False
        return self._found


class Range(NoRange):
    """A range that is recorded."""

    def __init__(self, spans: Spans, track: str, title: str) -> None:
        thread, profiler = threading.current_thread(), spans.profiler
        self._spans, self._title = spans, title
        self._track = track if thread is threading.main_thread() else thread.name
        self._record: Any = None
        if profiler is not None and profiler._is_profiler_enabled:  # noqa: SLF001
            self._record = profiler.record_function(f"samebits: {title}")
            self._record.__enter__()
        self._begin_ns = time.monotonic_ns()

    def end(self) -> None:
        """End the range. A second call does nothing."""
        if self._begin_ns:
            self._spans.add((self._track, self._title, self._begin_ns, time.monotonic_ns()))
            self._begin_ns = 0
        record, self._record = self._record, None
        if record is not None:
            record.__exit__(None, None, None)

    def __exit__(self, *_error: object) -> None:
        self.end()


spans = Spans()
