"""Which rank carries which lanes, which ranks are on which node, and how a sum over the lane tree crosses between nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, groupby

from samebits.errors import UsageError
from samebits.protocol.layout.lane_tree import Node, maximal_subtrees, merges_after


@dataclass(frozen=True)
class Nodes:
    """Ranks on nodes. Node `n` has the ranks `bounds[n]` up to `bounds[n + 1]`, at least one.

    Invariant: every rank is on one node, and nodes are in the order of their ranks.
    """

    bounds: tuple[int, ...]

    @property
    def num_nodes(self) -> int:
        return len(self.bounds) - 1

    @property
    def num_ranks(self) -> int:
        return self.bounds[-1]

    @property
    def sizes(self) -> list[int]:
        return [len(self.ranks(node)) for node in range(self.num_nodes)]

    def ranks(self, node: int) -> range:
        return range(self.bounds[node], self.bounds[node + 1])

    def node_of(self, rank: int) -> int:
        return next(node for node in range(self.num_nodes) if rank in self.ranks(node))

    def among(self, ranks: Sequence[int]) -> Nodes:
        """The nodes of some ranks only (ascending), which count from 0 then."""
        return sized([len([*group]) for _, group in groupby(ranks, self.node_of)])


def sized(sizes: Sequence[int]) -> Nodes:
    """Nodes with so many ranks each."""
    return Nodes((0, *accumulate(sizes)))


def nodes_of(record: Sequence[str]) -> Nodes | None:
    """Find the nodes from what each rank reported of its own; None where a node's ranks are not neighbours."""
    runs = [(name, len([*run])) for name, run in groupby(record)]
    if len({name for name, _ in runs}) < len(runs):
        return None
    return sized([size for _, size in runs])


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
        return next(rank for rank in range(self.num_ranks) if lane in self.lanes(rank))

    def subtrees(self, rank: int) -> Sequence[Node]:
        """The maximal subtrees that `rank` hands over, in lane order."""
        return maximal_subtrees(self.num_lanes, self.bounds[rank], self.bounds[rank + 1])

    def most_held(self) -> int:
        """The most gradients of lanes or subtrees that any rank holds at a time as it goes through its lanes."""
        return max(1, *(self._most_held(rank) for rank in range(self.num_ranks)))

    def _most_held(self, rank: int) -> int:
        subtrees, most = self.subtrees(rank), 0
        held: set[Node] = set()
        for lane in self.lanes(rank):
            held.add((lane, lane + 1))
            most = max(most, len(held))
            for left, right in merges_after(lane, subtrees, held):
                held -= {left, right}
                held.add((left[0], right[1]))
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


@dataclass(frozen=True)
class Crossing:
    """The way of a sum between nodes; the same on every rank.

    Args:
        nodes: the ranks on nodes.
        placement: the lanes on ranks.
        num_parts: into how many parts it is cut.
        in_one_step: whether every node adds up everything.
    """

    nodes: Nodes
    placement: Placement
    num_parts: int
    in_one_step: bool

    def subtrees(self, node: int) -> Sequence[Node]:
        """The maximal subtrees that a node hands over, in lane order."""
        return node_subtrees(self.nodes, self.placement, node)

    def carrier(self, node: int, part: int) -> int:
        """The rank that carries a part for its node."""
        return carrier(self.nodes, node, part, self.num_parts)

    def parts(self, rank: int) -> list[int]:
        """The parts that `rank` carries for its node; neighbours, none for some where there are few parts."""
        node = self.nodes.node_of(rank)
        return [part for part in range(self.num_parts) if self.carrier(node, part) == rank]

    def carried(self, rank: int, size: int) -> slice:
        """The elements of `size` that `rank` carries for its node."""
        parts = self.parts(rank)
        return (
            slice(piece(size, parts[0], self.num_parts).start, piece(size, parts[-1], self.num_parts).stop)
            if (parts)
            else slice(0, 0)
        )

    def share(self, part: slice, node: int) -> slice:
        """The elements of a part that a node adds up for all, in two steps."""
        cut = piece(part.stop - part.start, node, self.nodes.num_nodes)
        return slice(part.start + cut.start, part.start + cut.stop)

    def sent(self, node: int) -> float:
        """How much leaves a node, in sizes of the sum."""
        num_nodes, subtrees = self.nodes.num_nodes, len(self.subtrees(node))
        return (num_nodes - 1) * (subtrees if self.in_one_step else (subtrees + 1) / num_nodes)


def piece(size: int, number: int, count: int) -> slice:
    """Piece `number` of `size` elements cut into `count`; sizes differ by at most one."""
    return slice(number * size // count, (number + 1) * size // count)


def carrier(nodes: Nodes, node: int, part: int, num_parts: int) -> int:
    """The rank of a node that carries part `part` of `num_parts`."""
    ranks = nodes.ranks(node)
    return ranks[part * len(ranks) // num_parts]


def node_subtrees(nodes: Nodes, placement: Placement, node: int) -> Sequence[Node]:
    """The maximal subtrees of a node's lanes."""
    ranks = nodes.ranks(node)
    return maximal_subtrees(placement.num_lanes, placement.bounds[ranks.start], placement.bounds[ranks.stop])


def choose_crossing(nodes: Nodes, placement: Placement, *, is_small: bool) -> Crossing:
    """Choose the way that sends the fewest bytes from the node that sends most; a small sum goes in one part and step."""
    if is_small:
        return Crossing(nodes, placement, 1, in_one_step=True)
    ways = [Crossing(nodes, placement, max(nodes.sizes), in_one_step=one) for one in (True, False)]
    return min(ways, key=lambda way: max(way.sent(node) for node in range(nodes.num_nodes)))
