"""The batches of this rank's lanes, in order, on its device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lockstep.rank.data.copy_stream import Copy, CopyStream


class Batches(Iterator[Any]):
    """Batches as the DataLoader yields them, for ranks on the CPU.

    Args:
        fetched: the DataLoader's iterator, or one over its workers' batches.
    """

    def __init__(self, fetched: Iterator[Any]) -> None:
        self._fetched = fetched

    def __next__(self) -> Any:
        return next(self._fetched)

    def look_ahead(self) -> None:
        """Begin with the next batch, now that the current lane's work is queued. Draws from the process's random
        streams, so the caller sets them afterwards.
        """


class CopiedBatches(Batches):
    """Batches for a GPU, copied on their own stream.

    Args:
        fetched: the DataLoader's iterator.
        copies: the copying stream.
        ahead: whether the next batch may be fetched before it is asked for. True with loader workers, which fetch
            ahead anyway. Without them, ranks with many lanes, but not the others, would read a data set too early that
            the script changes between steps.
    """

    def __init__(self, fetched: Iterator[Any], copies: CopyStream, *, ahead: bool) -> None:
        super().__init__(fetched)
        self._copies, self._ahead = copies, ahead
        self._under_way: list[Copy] = []
        self._failure: Exception | None = None

    def __next__(self) -> Any:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if not self._under_way:
            self._under_way.append(self._copies.begin(next(self._fetched)))
        return self._copies.hand_over(self._under_way.pop())

    def look_ahead(self) -> None:
        if not self._ahead or self._under_way or self._failure is not None:
            return
        try:
            self._under_way.append(self._copies.begin(next(self._fetched)))
        except Exception as failure:  # noqa: BLE001 - the end, or a data set's error: raised with the next batch
            self._failure = failure
