"""How new parameters become visible to every rank after an update of which each rank made a part.

The seam of `zero1`: ranks with memory of their own hand values around; ranks that share the memory of the parameters
only have to wait for each other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from lockstep.strategy.replica.memory import ParameterMemory
from lockstep.transport.contract import Transport


@dataclass(frozen=True)
class Stretch:
    """Parameters of one rank that lie side by side."""

    owner: int
    """The rank that updates them."""
    values: Tensor
    """1-D, contiguous, a part of `flat`; the gaps between parameters are the same on every rank."""
    flat: Tensor
    """Of the arena."""


class Visibility(ParameterMemory, ABC):
    """Memory of parameters, and how updates become visible. Every rank says whether it `was_written`, calls `take_over` when any was, updates its stretches, and `after_update`."""

    is_shared = False
    """Whether what `allocate` makes lies once for all ranks."""

    def was_written(self) -> bool:
        """Whether the script wrote to parameters in a way that others do not see yet. Not a collective."""
        return False

    def take_over(self) -> None:
        """What the scripts wrote becomes everybody's. Every rank must call it, when no rank reads or writes parameters."""

    @abstractmethod
    def after_update(self, stretches: Sequence[Stretch]) -> None:
        """Return when this rank sees the new values of all `stretches`; the same on every rank, in the same order."""


class HandedAround(Visibility):
    """Every rank has parameters of its own; each stretch is broadcast by its owner, from and into the arena.

    40 MiB between 2 ranks took 11 ms over Gloo, as messages between pairs did; its all-gather took 46 ms.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def after_update(self, stretches: Sequence[Stretch]) -> None:
        for stretch in stretches:
            self._transport.broadcast(stretch.values, stretch.owner)
