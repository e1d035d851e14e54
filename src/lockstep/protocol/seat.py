"""Which nodes a run has, and which one this is: told to each rank, and used by the launcher for its numbers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True)
class Seat:
    """This node among the nodes of one round."""

    round: int
    """Which start of all ranks on all nodes this is, counted from 0."""
    node: int
    """This node's place among them, which ranks get as GROUP_RANK."""
    sizes: tuple[int, ...]
    """The ranks of each node."""
    interface: str = ""
    """The network interface for exchanges between nodes; empty: the library chooses."""

    @property
    def first_rank(self) -> int:
        """The first rank of this node."""
        return [0, *accumulate(self.sizes)][self.node]

    @property
    def world_size(self) -> int:
        """The ranks of all nodes."""
        return sum(self.sizes)

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return len(self.sizes)
