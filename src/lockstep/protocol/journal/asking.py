"""How the launcher asks a run to save and end, and what the run answers: four numbers in the header of a journal.

Each has one writer, and reading one takes well under a microsecond, so a rank looks in every step. Rank 0 is asked; it
tells the others in what they exchange anyway.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from lockstep.protocol.journal.ring import ASKING_OFFSET, map_ring

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
