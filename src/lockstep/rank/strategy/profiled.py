"""Ranges of a step in torch.profiler's traces, such as "lockstep: lane 2"; without a profiler they do nothing."""

from __future__ import annotations

from typing import Self

from torch.autograd import profiler


class Range:
    """A range from here to `end`, or to the end of a `with`. Ranges may end in any order.

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()
