"""Which ranks are on which node. A node's ranks are neighbours; ranks that are not cannot be grouped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby


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
        """How many ranks each node has."""
        return [len(self.ranks(node)) for node in range(self.num_nodes)]

    def ranks(self, node: int) -> range:
        """The ranks of a node."""
        return range(self.bounds[node], self.bounds[node + 1])

    def node_of(self, rank: int) -> int:
        """The node that `rank` is on."""
        return next(node for node in range(self.num_nodes) if rank in self.ranks(node))

    def among(self, ranks: Sequence[int]) -> Nodes:
        """The nodes of some ranks only (ascending), which count from 0 then."""
        return sized([len([*group]) for _, group in groupby(ranks, self.node_of)])


def sized(sizes: Sequence[int]) -> Nodes:
    """Nodes with so many ranks each."""
    return Nodes((0, *accumulate(sizes)))


def nodes_of(told: Sequence[str]) -> Nodes | None:
    """Find the nodes from what each rank told of its own; None where a node's ranks are not neighbours."""
    runs = [(name, len([*run])) for name, run in groupby(told)]
    if len({name for name, _ in runs}) < len(runs):
        return None
    return sized([size for _, size in runs])
