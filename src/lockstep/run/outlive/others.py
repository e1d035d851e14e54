"""What a survivor knows of the other ranks, dead and alive: how far each has come, by its journal."""

from __future__ import annotations

import time
from collections.abc import Sequence

from lockstep.handover.run_folder import RunFolder
from lockstep.journal.reached import Reached

PATIENCE_S = 3.0
"""How long a rank that lives may take to come to where this one waits. Usually it is there."""
LOOK_S = 0.002

BEHIND = "rank 0 died between two steps, and nobody else does what it had still to do there (print, write a file)"
BEHIND_STATE = "rank {} died between two steps, and perhaps had still to change its share of the optimizer's state"
LATE = "rank {} has not come to this place, and holds a share of the optimizer's state"


class Others:
    """The other ranks of the run.

    Args:
        folder: the run's.
        rank: this one.
        num_ranks: how many there are.
    """

    def __init__(self, folder: RunFolder, rank: int, num_ranks: int) -> None:
        self._folder, self._rank, self._num_ranks = folder, rank, num_ranks
        self.mine = Reached(folder.journal(rank))
        """Where this rank is."""
        self._known: tuple[int, set[int]] = (0, set())
        """A place, and which dead ranks had come there; those that were to replace them begin further back."""

    def objection(self, lost: Sequence[int], *, is_spread: bool, is_hidden: bool) -> str:
        """Why nobody can take the place of the ranks in `lost`; empty when somebody can.

        Args:
            lost: they are dead.
            is_spread: whether each rank holds a share of the optimizer's state, so all must have come to one place.
            is_hidden: whether the script has not looked at it on this rank, which has come here: then it changes nothing
                there on its way.
        """
        here = self.mine.place
        known = self._known[1] if self._known[0] == here else set()
        behind = [rank for rank in lost if rank not in known and self._place_of(rank) != here]
        self._known = here, known | {rank for rank in lost if rank not in behind}
        if 0 in behind:
            return BEHIND
        if not is_spread:
            return ""
        if behind and not is_hidden:
            return BEHIND_STATE.format(behind[0])
        return self._awaited([rank for rank in range(self._num_ranks) if rank != self._rank and rank not in lost])

    def _awaited(self, living: Sequence[int]) -> str:
        deadline = time.monotonic() + PATIENCE_S
        for rank in living:
            while self._place_of(rank) != self.mine.place:
                if time.monotonic() > deadline:
                    return LATE.format(rank)
                time.sleep(LOOK_S)
        return ""

    def _place_of(self, rank: int) -> int:
        return Reached(self._folder.journal(rank)).place
