"""Which rank carries which lanes.

Every rank carries a contiguous range of lanes, in rank order. Among the placements whose sizes differ by at most one,
the one whose ranks hand over the fewest subtrees wins, because the wire carries as many buffers as the worst rank has
subtrees (8 lanes on 3 ranks: 3 + 3 + 2 lanes, 2 + 2 + 1 buffers). On several nodes those that the nodes hand over count
first: 6 lanes on 2 x 2 ranks are 2 + 2 and 1 + 1, two whole subtrees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

from lockstep.errors import UsageError
from lockstep.protocol.layout.nodes import Nodes, sized
from lockstep.protocol.layout.tree import Node, maximal_subtrees, merges_after


@dataclass(frozen=True)
class Placement:
    """Lanes on ranks. Rank `r` carries the lanes `bounds[r]` up to `bounds[r + 1]`.

    Invariant: the ranks' lanes are disjoint, in order, and cover all lanes.
    """

    num_lanes: int
    bounds: tuple[int, ...]

    @property
    def num_ranks(self) -> int:
        return len(self.bounds) - 1

    def lanes(self, rank: int) -> range:
        """The lanes that `rank` carries; empty when it has no share."""
        return range(self.bounds[rank], self.bounds[rank + 1])

    def rank_of(self, lane: int) -> int:
        """The rank that carries `lane`."""
        return next(rank for rank in range(self.num_ranks) if lane in self.lanes(rank))

    def subtrees(self, rank: int) -> list[Node]:
        """The maximal subtrees that `rank` hands over, in lane order."""
        return maximal_subtrees(self.num_lanes, self.bounds[rank], self.bounds[rank + 1])

    def most_held(self) -> int:
        """The most gradients of lanes or subtrees that any rank holds at a time as it goes through its lanes."""
        return max(1, *(self._most_held(rank) for rank in range(self.num_ranks)))

    def _most_held(self, rank: int) -> int:
        subtrees, held, most = self.subtrees(rank), 0, 0
        for lane in self.lanes(rank):
            held += 1
            most = max(most, held)
            held -= len(merges_after(lane, subtrees))
        return most


def place(num_lanes: int, num_ranks: int, nodes: Nodes | None = None) -> Placement:
    """Return the even placement: sizes differ by at most one, fewest subtrees on the worst node, then on the worst rank.

    Args:
        num_lanes: of the run.
        num_ranks: of the run.
        nodes: where the ranks are; by default all on one node.

    Raises:
        UsageError: when a rank would have no lane.
    """
    if num_ranks < 1:
        raise UsageError(f"The number of ranks must be at least 1, but is {num_ranks}.", "Start with -n 1.")
    if num_lanes < num_ranks:
        raise UsageError(
            f"`lanes` must be at least the number of ranks, but is {num_lanes} with {num_ranks} ranks.",
            f"Start with -n {max(num_lanes, 1)}, or set lanes={num_ranks}.",
        )
    return place_shares(num_lanes, _even_shares(num_lanes, nodes or sized([num_ranks])))


def place_shares(num_lanes: int, shares: Sequence[int]) -> Placement:
    """Return the placement that gives `shares[r]` lanes to rank `r` (a slow node may get fewer, or none).

    Raises:
        UsageError: when the shares are negative or do not add up to `num_lanes`.
    """
    if min(shares, default=-1) < 0 or sum(shares) != num_lanes:
        raise UsageError(
            f"The lanes per rank, {list(shares)}, must be 0 or more and add up to {num_lanes}.",
            "Give each rank its number of lanes, 0 for none.",
        )
    return Placement(num_lanes, (0, *accumulate(shares)))


def _even_shares(num_lanes: int, nodes: Nodes) -> tuple[int, ...]:
    """The shares of the best even placement; on a tie the early ranks have more."""
    size, larger = divmod(num_lanes, nodes.num_ranks)
    if not larger:
        return (size,) * nodes.num_ranks

    @cache
    def on_node(start: int, ranks: int, larger_left: int) -> tuple[int, int, tuple[int, ...]]:
        """(subtrees of the worst rank, subtrees in total, negated shares) of so many ranks, from lane `start` on."""
        if ranks == 0:
            return (0, 0, ())
        options = []
        for extra in _possible(1, larger_left, ranks - 1):
            worst, total, shares = on_node(start + size + extra, ranks - 1, larger_left - extra)
            count = len(maximal_subtrees(num_lanes, start, start + size + extra))
            options.append((max(worst, count), total + count, (-(size + extra), *shares)))
        return min(options)

    @cache
    def from_node(node: int, larger_left: int) -> tuple[int, int, int, int, tuple[int, ...]]:
        """(of the worst node, of nodes in total, of the worst rank, of ranks in total, negated shares), from it on."""
        if node == nodes.num_nodes:
            return (0, 0, 0, 0, ())
        ranks = nodes.ranks(node)
        start = ranks.start * size + (larger - larger_left)
        options = []
        for extra in _possible(len(ranks), larger_left, nodes.num_ranks - ranks.stop):
            worst_node, all_nodes, worst, total, shares = from_node(node + 1, larger_left - extra)
            mine, sum_of_mine, own_shares = on_node(start, len(ranks), extra)
            count = len(maximal_subtrees(num_lanes, start, start + len(ranks) * size + extra))
            counts = max(worst_node, count), all_nodes + count, max(worst, mine), total + sum_of_mine
            options.append((*counts, (*own_shares, *shares)))
        return min(options)

    return tuple(-share for share in from_node(0, larger)[-1])


def _possible(ranks: int, larger_left: int, ranks_after: int) -> range:
    """How many of so many ranks may be larger ones."""
    return range(max(0, larger_left - ranks_after), min(ranks, larger_left) + 1)
