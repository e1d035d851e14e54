"""How a sum over the lane tree crosses from node to node.

Every node adds up its own lanes to its maximal subtrees, in its own memory. What then travels is cut into as many *parts* as
the largest node has ranks; each rank of a node carries neighbouring parts, so all links and cores are used and nothing
is sent twice. Two ways, whichever sends fewer bytes:

one step     every node sends its part to every other, and each adds them up: (nodes - 1) x subtrees x size
two steps    a node adds up one node's share of each part and hands it around, as a ring would:
             (nodes - 1) / nodes x (subtrees + 1) x size
"""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.protocol.layout.nodes import Nodes
from lockstep.protocol.layout.placement import Placement
from lockstep.protocol.layout.tree import Node, maximal_subtrees


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

    def subtrees(self, node: int) -> list[Node]:
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


def node_subtrees(nodes: Nodes, placement: Placement, node: int) -> list[Node]:
    """The maximal subtrees of a node's lanes."""
    ranks = nodes.ranks(node)
    return maximal_subtrees(placement.num_lanes, placement.bounds[ranks.start], placement.bounds[ranks.stop])


def choose_crossing(nodes: Nodes, placement: Placement, *, is_small: bool) -> Crossing:
    """Choose the way that sends the fewest bytes from the node that sends most; a small sum goes in one part and step."""
    if is_small:
        return Crossing(nodes, placement, 1, in_one_step=True)
    ways = [Crossing(nodes, placement, max(nodes.sizes), in_one_step=one) for one in (True, False)]
    return min(ways, key=lambda way: max(way.sent(node) for node in range(nodes.num_nodes)))
