"""The gauges of all ranks: those of this node from its journals, those of the others as they tell them.

Each node puts its own into the run's store, over what it put there before, and the run's first node fetches the others'. So the
log does not grow with the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.launcher.nodes.cluster import Cluster
from lockstep.protocol.journal.gauges import Gauges, listed, unlist

EVERY_S = 1.0
"""Between two times that a node tells its gauges: ten steps of a tenth of a second."""
NODES_PER_S = 1000
"""So many nodes tell theirs in a second; where there are more, each tells them less often."""


@dataclass
class AllGauges:
    """Those of one round.

    Args:
        cluster: the nodes; None on one node.
    """

    cluster: Cluster | None
    _next_s: float = 0.0

    def tell(self, own: Sequence[Gauges], now_s: float) -> bool:
        """Tell the other nodes, if it is time; whether it was."""
        if self.cluster is None or now_s < self._next_s:
            return False
        self._next_s = now_s + max(EVERY_S, len(self.cluster.view.members) / NODES_PER_S)
        self.cluster.sayings.tell_gauges([listed(each) for each in own])
        return True

    def of(self, own: Sequence[Gauges]) -> tuple[Gauges, ...]:
        """Those of all ranks, in their order, asked for on the run's first node; only this node's until all have told theirs."""
        if self.cluster is None:
            return tuple(own)
        others = self.cluster.sayings.members_elsewhere()
        told = [self.cluster.sayings.gauges.get(one.record.node, []) for one in others]
        if any(len(gauges) != one.record.ranks for gauges, one in zip(told, others, strict=True)):
            return tuple(own)
        return (*own, *(unlist(values) for gauges in told for values in gauges))
