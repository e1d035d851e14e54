"""The transport under numerics="fast": the backend's own all-reduce, in whatever order it adds.

Everything else is as in `torch_group`. A copy of the partials is reduced, so the contract about `partials` and `out`
holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from lockstep.layout.placement import Placement
from lockstep.transport.all_or_lost import all_or_lost
from lockstep.transport.contract import Pending
from lockstep.transport.torch_group import GroupTransport


class BackendOrderTransport(GroupTransport):
    """Ranks of the default process group, whose backend adds in any order. Bits depend on the number of ranks."""

    @all_or_lost
    def begin_guarded(self, partials: Sequence[Tensor], placement: Placement, out: Tensor) -> Pending:  # noqa: ARG002
        total = out.new_zeros(out.shape) if not partials else partials[0].clone()
        for partial in partials[1:]:
            total.add_(partial)
        return _BackendSum(self, total, out)


class _BackendSum(Pending):
    def __init__(self, transport: GroupTransport, total: Tensor, out: Tensor) -> None:
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
        self.transport.wait(self._works, "the exchange of gradients", self._total)
