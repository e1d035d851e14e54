"""Ranges of a step in torch.profiler's traces: "lockstep: lane 2", "lockstep: reduce bucket 3". Nothing while nobody profiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.autograd import profiler


class Range:
    """From here to `end`. Ends in the order of beginnings are not needed.

    Args:
        title: as traces show it.
    """

    def __init__(self, title: str) -> None:
        self._record = profiler.record_function(title) if profiler._is_profiler_enabled else None  # noqa: SLF001
        if self._record is not None:
            self._record.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Twice does no harm."""
        record, self._record = self._record, None
        if record is not None:
            record.__exit__(None, None, None)


@contextmanager
def profiled(title: str) -> Iterator[None]:
    """Show what is done inside."""
    shown = Range(title)
    try:
        yield
    finally:
        shown.end()
