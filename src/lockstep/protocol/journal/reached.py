"""How far rank 0 has come, in the header of its journal: what it lets the script do for all before there is done.

One writer; it stays when the writer is killed.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from lockstep.protocol.journal.ring import REACHED_OFFSET, map_ring

_NUMBER, _BOTH = struct.Struct("<Q"), struct.Struct("<Qd")
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
        _NUMBER.pack_into(self._ring, REACHED_OFFSET, NOWHERE)  # so nobody reads one place with another's time
        _BOTH.pack_into(self._ring, REACHED_OFFSET, NOWHERE, at_s)
        _NUMBER.pack_into(self._ring, REACHED_OFFSET, place)

    def read(self) -> tuple[int, float]:
        """The place, `NOWHERE` before the first one, and when it was reached."""
        place, at_s = _BOTH.unpack_from(self._ring, REACHED_OFFSET)
        return (place, at_s) if _NUMBER.unpack_from(self._ring, REACHED_OFFSET)[0] == place else (NOWHERE, 0.0)


def place_of(step: int, part: int) -> int:
    """The number of a place.

    Args:
        step: the steps that have ended.
        part: which place around them, from 1; less than `PARTS`.
    """
    return step * PARTS + part
