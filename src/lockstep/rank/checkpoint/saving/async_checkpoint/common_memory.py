"""How every rank comes to write to the memory of rank 0: it says where that is, the others open it once and keep it.

They tell each other what they have open in an exchange that a state makes anyway. Only for the first state, and where
one needs more room, there are two exchanges more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lockstep.rank.caller import where
from lockstep.rank.checkpoint.saving.async_checkpoint.memory import Mapped, Place, StateMemory
from lockstep.rank.transport.contract import Transport

CALL = "memory of a state"


@dataclass(frozen=True)
class Common:
    """What the ranks have agreed on."""

    mapped: Mapped | None
    """The memory; None where this process cannot open it, as on another node."""
    reach: Sequence[int]
    """The ranks that can, in ascending order; the same on every rank."""
    own: StateMemory | None
    """On rank 0 the memory too; None where it is that of another process, whose place this rank has taken."""


class CommonMemory:
    """The memory as one rank has it.

    Args:
        refusal: says why so many bytes are not to be taken, if they are not; asked on rank 0.
    """

    def __init__(self, refusal: Callable[[int], str]) -> None:
        self._refusal = refusal
        self._own: StateMemory | None = None
        self._seen: tuple[Place, Mapped] | None = None
        """That of rank 0, on another rank."""

    def tell(self) -> dict[str, Any] | None:
        """What this rank can write to, for `find`; None for nothing."""
        if self._own is not None and not self._refusal(self._own.place.size):
            return vars(self._own.place)
        return vars(self._seen[0]) if self._seen is not None else None

    def find(self, transport: Transport, told: Sequence[Any], size: int) -> Common | str:
        """Memory of `size` bytes, or why there is none. Collective: call it on every rank.

        Args:
            transport: between the ranks.
            told: what `tell` returned on each, just before.
            size: the same on every rank.
        """
        offer, reach = told[0], [*range(transport.world_size)]
        if offer is None or offer["size"] < size or any(one != offer for one in told):
            mine = self._make(size) if transport.rank == 0 else None
            [offer, *_] = transport.all_gather_object(mine, CALL, where())
            if isinstance(offer, str):
                return offer
            can = transport.all_gather_object(self._open(Place(**offer)) is not None, CALL, where())
            reach = [rank for rank, can_write in enumerate(can) if can_write]
        place = Place(**offer)
        is_own = self._own is not None and self._own.place == place
        return Common(self._open(place), reach, self._own if is_own else None)

    def _make(self, size: int) -> dict[str, Any] | str:
        if why := self._refusal(size):
            return why
        try:
            self._own = self._own or StateMemory()
            self._own.reserve(size)
        except OSError as error:
            return error.strerror or str(error)
        return vars(self._own.place)

    def _open(self, place: Place) -> Mapped | None:
        if self._own is not None and self._own.place == place:
            return self._own.mapped
        if self._seen is None or self._seen[0] != place:
            self._seen = None
            with suppress(OSError):
                self._seen = place, Mapped.at(place)
        return self._seen[1] if self._seen is not None else None

    def close(self) -> None:
        """Let go of it."""
        self._seen = None
        if self._own is not None:
            self._own.close()
            self._own = None
