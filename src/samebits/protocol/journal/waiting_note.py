"""The rank's end of what it waits for.

The compiled part notes its own waits that last longer than 20 ms (native/src/wait_note.hpp), at the same place; waits of
other kinds are noted here. A rank has one note at a time: that of the thread that came first.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from samebits.protocol.journal.gauges import Waiting, pack_waiting
from samebits.protocol.journal.ring import WAITING_OFFSET, map_ring, name_process, publish
from samebits.protocol.journal.spans import NO_RANGE, NoRange, spans


class WaitingNote:
    """The note of one rank.

    Args:
        journal: its own.
    """

    def __init__(self, journal: Path) -> None:
        self._ring = map_ring(journal, mmap.ACCESS_WRITE)
        self._taken = threading.Lock()
        name_process(self._ring)
        # [Note: why the note is cleared at the start]
        # A ring outlives its rank. What a rank that was here before waited for says nothing about this one.
        self._write(Waiting())

    @property
    def address(self) -> int:
        """Where the note is in this process's memory, for the compiled part."""
        return ctypes.addressof(ctypes.c_char.from_buffer(self._ring, WAITING_OFFSET))

    @contextmanager
    def waits(self, what: str, behind: Iterable[int]) -> Iterator[None]:
        """Note a wait as long as the block lasts."""
        if not self._taken.acquire(blocking=False):
            yield
            return
        try:
            self._write(Waiting(time.monotonic_ns(), frozenset(behind), what))
            yield
        finally:
            self._write(Waiting())
            self._taken.release()

    def _write(self, waiting: Waiting) -> None:
        publish(self._ring, WAITING_OFFSET, pack_waiting(waiting))


@dataclass
class Subject:
    """What the exchange under way is about, beside its operation: `bucket 2, first layer4.0.conv1.weight`.

    Set before an exchange, asked for only when somebody waits so long that it is noted.
    """

    of: Callable[[], str] | None = None

    def with_line(self, line: str) -> str:
        """`bucket 2, first layer4.0.conv1.weight, train.py:88`; the line alone where nothing is known."""
        return ", ".join(filter(None, (self.of() if self.of is not None else "", line)))


subject = Subject()
"""Of this process: exchanges of gradients are made one after the other."""

_mine: WaitingNote | None = None


def note_waits(journal: Path) -> None:
    """From here on this process notes in `journal`, its rank's own, what it waits for; a process forked from it does not."""
    global _mine  # noqa: PLW0603 - a process is one rank
    _mine = WaitingNote(journal)
    os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    global _mine  # noqa: PLW0603
    _mine = None


def noted_at() -> int:
    """The address of this process's note; 0 when it has none."""
    return _mine.address if _mine is not None else 0


@contextmanager
def waits(what: str, behind: Iterable[int] = ()) -> Iterator[None]:
    """Note that this rank waits for others as long as the block lasts.

    Args:
        what: in which operation.
        behind: for whom, by their numbers in the run; empty when nobody knows.
    """
    with range_of_wait(what, behind), nullcontext() if _mine is None else _mine.waits(what, behind):
        yield


MOST_NAMED = 4
"""Of more ranks, a range has the number."""


def range_of_wait(what: str, behind: Iterable[int] = (), about: Callable[[], str] | None = None) -> NoRange:
    """The range of a wait that needs no note: `the exchange of gradients (bucket 2, first fc.weight), for rank 3`.

    Args:
        what: in which operation.
        behind: as of `waits`.
        about: what the exchange is about; `subject.of`.
    """
    if not spans.are_shown():
        return NO_RANGE
    ranks = sorted(behind)
    names = ", ".join(map(str, ranks)) if len(ranks) <= MOST_NAMED else f"{len(ranks)} others"
    title = f"{what} ({about()})" if about is not None else what
    return spans.range("waits", f"{title}, for {'rank ' * (len(ranks) == 1)}{names}" if ranks else title)
