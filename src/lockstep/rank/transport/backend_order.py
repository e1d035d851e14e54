"""Sums under numerics="fast": the backend's own all-reduce, in whatever order it adds. Bits depend on the number of ranks.

Everything else is as in `torch_group` and `gpu_ranks`. A copy of the partials is reduced, so the contract about `partials`
and `out` holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from lockstep.protocol.layout.placement import Placement
from lockstep.rank.transport.all_or_lost import all_or_lost
from lockstep.rank.transport.contract import Pending
from lockstep.rank.transport.gathered_sum import gradients
from lockstep.rank.transport.torch_group import GroupTransport


class BackendOrderTransport(GroupTransport):
    """CPU ranks of the default process group; Gloo adds in any order."""

    @all_or_lost
    def begin_guarded(self, partials: Sequence[Tensor], placement: Placement, out: Tensor) -> Pending:  # noqa: ARG002
        return BackendSum(self, partials, out)


class AddsUp(Protocol):
    """What it needs of a transport; see `GroupTransport` and `GpuTransport`."""

    def begin_sum(self, data: Tensor) -> Sequence[Any]:
        """Begin to add `data` over the ranks, in place and in the backend's order."""

    def wait(self, works: Sequence[Any], what: str) -> None:
        """Wait until all have ended."""


class BackendSum(Pending):
    """A sum that the backend adds up."""

    def __init__(self, transport: AddsUp, partials: Sequence[Tensor], out: Tensor) -> None:
        total = partials[0].clone() if partials else out.new_zeros(out.shape)
        for partial in partials[1:]:
            total.add_(partial)
        self.transport, self._total, self._out = transport, total, out
        self._works = transport.begin_sum(total)

    @all_or_lost
    def advance(self, scale: float = 1.0) -> None:
        self.give_up()
        self._out.copy_(self._total)
        if scale != 1.0:
            self._out.mul_(scale)

    def finish(self) -> None:
        """Do nothing: `advance` has done everything."""

    @all_or_lost
    def give_up(self) -> None:
        self.transport.wait(self._works, gradients())
