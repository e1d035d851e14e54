"""Sums in the backend's own order under numerics="fast", and sums on GPUs: rank r adds up slice r of every partial, in the lane
tree's order, and sends it to all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from samebits.protocol.layout.lane_tree import Node, fold
from samebits.protocol.layout.placement import Placement
from samebits.rank.transport.across import gradients
from samebits.rank.transport.channel import Scratch
from samebits.rank.transport.contract import Pending
from samebits.rank.transport.lost_rank import all_or_lost
from samebits.rank.transport.nccl import Nccl
from samebits.rank.transport.torch_group import CollectiveTransport, GroupTransport, add


class BackendOrderTransport(GroupTransport):
    """CPU ranks of the default process group; Gloo adds in any order."""

    @all_or_lost
    def begin_guarded(self, partials: Sequence[Tensor], placement: Placement, out: Tensor) -> Pending:  # noqa: ARG002
        return BackendSum(self, partials, out)


class BackendSum(Pending):
    """A sum that the backend adds up."""

    def __init__(self, transport: CollectiveTransport, partials: Sequence[Tensor], out: Tensor) -> None:
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

    @all_or_lost
    def give_up(self) -> None:
        self.transport.wait(self._works, gradients())


class SlicedOnDevices(Pending):
    """Such a sum; see `Pending`.

    Args:
        of_device: the transport's.
        subtrees: those of each rank, in the order of its partials.
    """

    def __init__(
        self,
        transport: CollectiveTransport,
        of_device: tuple[Nccl, Scratch],
        partials: Sequence[Tensor],
        subtrees: Sequence[Sequence[Node]],
        out: Tensor,
    ) -> None:
        self.transport, (self._nccl, self._scratch) = transport, of_device
        self._partials, self._out = partials, out
        size = -(-out.numel() // transport.world_size)
        bounds = [min(rank * size, out.numel()) for rank in range(transport.world_size + 1)]
        self._slices = [slice(start, end) for start, end in pairwise(bounds)]
        self._sizes = [each.stop - each.start for each in self._slices]
        self._arriving: list[Tensor] = []
        self._values: dict[Node, Tensor] = {}
        rows = max(map(len, subtrees))
        self._works = [self._begin_row(row, subtrees) for row in range(rows)]

    def _begin_row(self, row: int, subtrees: Sequence[Sequence[Node]]) -> object:
        """Begin to send the slices of this rank's partial of this number, if it has one, and to receive the others'."""
        nccl, mine = self._nccl, self._sizes[self.transport.rank]
        arrive = [mine if row < len(nodes) else 0 for nodes in subtrees]
        arriving = self._scratch.take(self._out, sum(arrive))
        self._arriving.append(arriving)
        for nodes, part in zip(subtrees, torch.split(arriving, arrive), strict=True):
            if row < len(nodes):
                self._values[nodes[row]] = part
        if row < len(self._partials):
            return nccl.all_to_all(arriving, self._partials[row], arrive, self._sizes)
        return nccl.all_to_all(arriving, self._out[:0], arrive, [0] * self.transport.world_size)

    @all_or_lost
    def advance(self, scale: float = 1.0) -> None:
        transport, out, values = self.transport, self._out, self._values
        mine = out[self._slices[transport.rank]]
        transport.wait(self._works, gradients())
        total = fold((0, max(node[1] for node in values)), values, add)
        if scale != 1.0:
            # Each rank scales its slice, once.
            total.mul_(scale)
        mine.copy_(total)
        self._scratch.give_back(self._arriving)
        if len({*self._sizes}) == 1:
            self._works = [self._nccl.all_gather(out, mine)]
        else:
            self._works = [self._nccl.all_gather_parts([out[each] for each in self._slices], mine)]

    @all_or_lost
    def finish(self) -> None:
        self.transport.wait(self._works, gradients())

    @all_or_lost
    def give_up(self) -> None:
        self.transport.wait(self._works, gradients())
        self._scratch.give_back(self._arriving)
