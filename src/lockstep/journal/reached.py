"""How far a rank has come, as one number in the header of its journal: the last place from which a new rank can go on.

One writer; it stays when the writer is killed.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from lockstep.journal.ring import REACHED_OFFSET, map_ring

_NUMBER = struct.Struct("<Q")
PARTS = 8


class Reached:
    """Both ends.

    Args:
        journal: the rank's.
    """

    def __init__(self, journal: Path) -> None:
        self._ring = map_ring(journal, mmap.ACCESS_WRITE)

    def note(self, step: int, part: int) -> None:
        """Come to a place.

        Args:
            step: the steps that have ended.
            part: which place around them; less than `PARTS`.
        """
        _NUMBER.pack_into(self._ring, REACHED_OFFSET, step * PARTS + part)

    @property
    def place(self) -> int:
        """The same number for the same place; 0 before the first one."""
        number: int = _NUMBER.unpack_from(self._ring, REACHED_OFFSET)[0]
        return number
