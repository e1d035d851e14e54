"""How the launcher tells a rank that a node of the run is lost: one number in the header of its journal.

Connections to a node whose link is cut stay open, so the rank would wait for it without end.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from lockstep.protocol.journal.ring import LOST_NODE_OFFSET, map_ring

_NUMBER = struct.Struct("<Q")


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
