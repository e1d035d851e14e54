"""Ranges of a step in torch.profiler's traces, such as "lockstep: lane 2"; without a profiler they do nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.autograd import profiler


class Range:
    """A range from here to `end`. Ranges may end in any order.

    Args:
        title: as traces show it.
    """

    def __init__(self, title: str) -> None:
        self._record = profiler.record_function(title) if profiler._is_profiler_enabled else None  # noqa: SLF001
        if self._record is not None:
            self._record.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """End the range. A second call does nothing."""
        record, self._record = self._record, None
        if record is not None:
            record.__exit__(None, None, None)


@contextmanager
def profiled(title: str) -> Iterator[None]:
    """Show what is done inside as a range."""
    shown = Range(title)
    try:
        yield
    finally:
        shown.end()
