"""Parameters that are in a node's memory once, although every rank's script owns a model.

Each rank sees them through a private view of shared memory: what the script writes in any way (`p.clamp_()`,
`load_state_dict`) goes into copies of those pages that only this rank sees, as if the parameters were its own. Before
the next update the kernel shows which pages were written; then the ranks compare their values, which must be equal as
under `ddp`, take them over into the shared memory, and drop the copies. Updates write into the shared memory itself.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from weakref import WeakSet

import torch
from torch import Tensor

from samebits.errors import UsageError
from samebits.rank.strategy.agreement import bit_sums
from samebits.rank.strategy.zero1.update_agreement import Stretch, Visibility
from samebits.rank.transport.contract import SharedOnce, Transport

PAGE = 4096
"""The least that the kernel copies."""

_memories: WeakSet[NodeSharedParameters] = WeakSet()
"""All of this process."""


@cache
def _see_forks() -> None:
    """Let processes that this one forks keep the parameters' values of that moment."""
    # [Note: why a fork copies the parameters]
    # A loader worker that reads the model sees the same memory as its rank, so it would see every later update. It costs a
    # copy of the parameters, for the first of several forks between two updates.
    os.register_at_fork(before=_hold_all)


def _hold_all() -> None:
    for memory in _memories:
        memory.hold()


class NodeSharedParameters(Visibility):
    """Parameters of ranks that share memory, which `Transport.allocate_once` makes.

    Call `publish` on every rank after it adopts new parameters into memory that `allocate` made.
    """

    is_shared = True

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        _see_forks()
        _memories.add(self)
        self._parts: list[SharedOnce] = []
        """What all ranks see."""

    def allocate(self, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        if not size:
            return super().allocate(size, dtype, device)
        found = self._transport.allocate_once(size, dtype, device)
        self._parts.append(found)
        return found.mine

    def master(self, flat: Tensor) -> Tensor:
        # The flat of an earlier layout is its own master.
        return next((part.master for part in self._parts if part.mine is flat), flat)

    def keep(self, flats: Sequence[Tensor]) -> None:
        retained = [part for part in self._parts if any(part.mine is flat for flat in flats)]
        for part in self._parts:
            if not any(part is one for one in retained):
                self._transport.free(part.master)
        self._parts = retained

    def hold(self) -> None:
        """Let this rank's view have pages of its own, as if its script had written to all of them. Not a collective."""
        # Adding 0 to one byte of each page makes the kernel copy the page.
        for part in self._parts:
            part.mine.view(torch.uint8)[::PAGE].add_(0)

    def publish(self) -> None:
        if self._parts:
            self.take_over()

    def was_written(self) -> bool:
        return any(part.was_written() for part in self._parts)

    def after_update(self, stretches: Sequence[Stretch]) -> None:
        """Wait until all ranks see what is in shared memory; broadcast what had to stay in a rank's own."""
        parts = self._parts
        for stretch in stretches:
            if not any(part.mine is stretch.flat for part in parts):
                self._transport.broadcast(stretch.values, stretch.owner)
        self._transport.barrier("updated")

    def take_over(self) -> None:
        parts = self._parts
        # Ranks with other values would lose them here in silence, so they are compared before rank 0's are published.
        sums = self._transport.all_gather_object(bit_sums([part.mine for part in parts]), "parameters")
        if any(one != sums[0] for one in sums):
            raise UsageError(
                "The parameters differ between ranks: the script modified them on some ranks only, or with different "
                "values.",
                "Make the same change on every rank.",
            )
        if self._transport.rank == 0:
            for part in parts:
                part.master.copy_(part.mine)
        self._transport.barrier("parameters")
        for part in parts:
            part.forget_writes()
