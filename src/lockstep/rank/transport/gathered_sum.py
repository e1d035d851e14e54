"""A small sum: every rank gets every partial and adds them in the lane tree's order, because latency decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from lockstep.protocol.journal.waiting_note import subject
from lockstep.protocol.layout.tree import Node, fold
from lockstep.rank.caller import where
from lockstep.rank.transport.all_or_lost import all_or_lost
from lockstep.rank.transport.contract import Pending

SMALL_BYTES = 32 * 1024
"""Partials up to this size are all-gathered whole."""


class Gathers(Protocol):
    """What it needs of a transport; see `GroupTransport` and `GpuTransport`."""

    world_size: int

    def begin_all_gather(self, out: Tensor, data: Tensor, *, is_sum: bool = False) -> Sequence[Any]:
        """Begin to collect equal parts into `out`, in rank order."""

    def wait(self, works: Sequence[Any], what: str) -> None:
        """Wait until all have ended."""


def gradients() -> str:
    """What a rank waits for that waits for a sum."""
    what = "the exchange of gradients"
    return what if subject.of is None else f"{what} ({subject.with_line(where())})"


def add(left: Tensor, right: Tensor) -> Tensor:
    """One addition of the tree, in place."""
    return left.add_(right)


class GatheredSum(Pending):
    """A sum in which every rank gets every partial and adds them."""

    def __init__(self, transport: Gathers, partials: Sequence[Tensor], subtrees: list[list[Node]], out: Tensor) -> None:
        self.transport, self._subtrees, self._out = transport, subtrees, out
        rows = max(map(len, subtrees))
        mine = out.new_zeros((rows, out.numel()))
        for row, partial in zip(mine, partials, strict=False):
            row.copy_(partial)
        self._all = out.new_empty((transport.world_size, rows, out.numel()))
        self._works = transport.begin_all_gather(self._all.view(-1), mine.view(-1), is_sum=True)

    def advance(self, scale: float = 1.0) -> None:
        self.give_up()
        values = {
            node: self._all[rank, row] for rank, nodes in enumerate(self._subtrees) for row, node in enumerate(nodes)
        }
        total = fold((0, max(node[1] for node in values)), values, add)
        self._out.copy_(total if scale == 1.0 else total.mul_(scale))

    def finish(self) -> None:
        """Do nothing: `advance` has done everything."""

    @all_or_lost
    def give_up(self) -> None:
        self.transport.wait(self._works, gradients())
