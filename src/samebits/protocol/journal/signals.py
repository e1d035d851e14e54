"""What launcher and ranks exchange beside the journal's records: orders and answers in its header, news through a pipe."""

from __future__ import annotations

import json
import mmap
import os
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from samebits.protocol.journal.failure import Failure
from samebits.protocol.journal.ring import ASKING_OFFSET, LOST_NODE_OFFSET, REACHED_OFFSET, map_ring
from samebits.protocol.records import plain, restored

_NUMBER = struct.Struct("<Q")
_ASKED, _LISTENS, _SAVED, _WANTED = (ASKING_OFFSET + n * _NUMBER.size for n in range(4))


class Asking:
    """Both ends.

    Args:
        journal: of rank 0.
    """

    def __init__(self, journal: Path) -> None:
        self._ring = map_ring(journal, mmap.ACCESS_WRITE)

    def ask(self, number: int) -> None:
        """The launcher: save and end, because of this signal."""
        _NUMBER.pack_into(self._ring, _ASKED, number)

    @property
    def asked(self) -> int:
        """The signal because of which the run is to save and end; 0 when it is not."""
        number: int = _NUMBER.unpack_from(self._ring, _ASKED)[0]
        return number

    def listen(self, listens: bool) -> None:
        """The rank: whether asking is of use now."""
        _NUMBER.pack_into(self._ring, _LISTENS, listens)

    @property
    def listens(self) -> bool:
        """Whether the run is in a loop that saves by itself."""
        return bool(_NUMBER.unpack_from(self._ring, _LISTENS)[0])

    def answer(self, step: int) -> None:
        """The rank: the state after `step` was saved, and the run ends."""
        _NUMBER.pack_into(self._ring, _SAVED, step + 1)

    @property
    def saved(self) -> int | None:
        """The step after which the run was saved because it was asked to; None when it was not."""
        number: int = _NUMBER.unpack_from(self._ring, _SAVED)[0]
        return number - 1 if number else None

    def want_snapshot(self) -> None:
        """The launcher: keep the state in memory after this step, because all ranks are about to start again."""
        _NUMBER.pack_into(self._ring, _WANTED, 1)

    def takes_snapshot(self) -> bool:
        """The rank: whether the launcher wants one that was not taken yet."""
        return bool(_NUMBER.unpack_from(self._ring, _WANTED)[0])

    def took_snapshot(self) -> None:
        """The rank: one was taken, or cannot be."""
        _NUMBER.pack_into(self._ring, _WANTED, 0)


class LostNode:
    """Both ends.

    Args:
        journal: of one rank.
    """

    def __init__(self, journal: Path) -> None:
        self._ring = map_ring(journal, mmap.ACCESS_WRITE)

    def tell(self) -> None:
        """The launcher: nobody has to wait for it any more."""
        _NUMBER.pack_into(self._ring, LOST_NODE_OFFSET, 1)

    def is_told(self) -> bool:
        """The rank: whether a node was lost."""
        return bool(_NUMBER.unpack_from(self._ring, LOST_NODE_OFFSET)[0])


class Event(StrEnum):
    JOINED = "joined"
    """The script was in a group of ranks that it made in its own way."""
    MET = "met"
    """The script's ranks have met through the run."""
    STORE = "store"
    """The script wants a store at the run's port."""
    LEAVING = "leaving"
    """The script has ended, by `sys.exit` or at its end, and the process has not."""
    FAILED = "failed"
    KEEPS = "keeps"
    """From here on the rank takes a last snapshot if another one is lost."""
    KEPT = "kept"
    """Another rank was lost, and it has taken one. The code: 1 if it will not."""


@dataclass(frozen=True)
class News:
    rank: int
    event: Event
    code: int = 0
    """The exit code, for LEAVING."""
    place: str = ""
    """The line of `sys.exit`, for LEAVING: `train.py:31`; empty at the end of the script."""
    time_ns: int = 0
    failure: Failure | None = field(default=None)
    """The failure, shortened, for FAILED when its record could not be written."""

    def tell(self, pipe: int) -> None:
        """Write it; it does not matter if the launcher is gone."""
        with suppress(OSError):
            os.write(pipe, json.dumps(plain(self)).encode() + b"\n")


def read_news(line: bytes) -> News:
    return restored(News, json.loads(line))


_FAR = struct.Struct("<Q")
_BOTH = struct.Struct("<Qd")
PARTS = 8
NOWHERE = 0


class Reached:
    """Both ends.

    Args:
        journal: rank 0's.
    """

    def __init__(self, journal: Path) -> None:
        self._ring = map_ring(journal, mmap.ACCESS_WRITE)

    def note(self, place: int, at_s: float) -> None:
        """Come to a place (see `place_of`) at a time of `growing_time`."""
        # [Note: why the place is cleared first]
        # Place and time are two writes. A reader in between must not take one place with another's time.
        _FAR.pack_into(self._ring, REACHED_OFFSET, NOWHERE)
        _BOTH.pack_into(self._ring, REACHED_OFFSET, NOWHERE, at_s)
        _FAR.pack_into(self._ring, REACHED_OFFSET, place)

    def read(self) -> tuple[int, float]:
        """The place, `NOWHERE` before the first one, and when it was reached."""
        place, at_s = _BOTH.unpack_from(self._ring, REACHED_OFFSET)
        return (place, at_s) if _FAR.unpack_from(self._ring, REACHED_OFFSET)[0] == place else (NOWHERE, 0.0)


def place_of(step: int, part: int) -> int:
    """The number of a place.

    Args:
        step: the steps that have ended.
        part: which place around them, from 1; less than `PARTS`.
    """
    return step * PARTS + part
