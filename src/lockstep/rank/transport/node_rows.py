"""A row of bytes of each node, exchanged between the nodes and handed around in them."""

from __future__ import annotations

from torch import Tensor

from lockstep.protocol.layout.crossing import carrier, piece
from lockstep.protocol.layout.nodes import Nodes
from lockstep.rank.caller import where
from lockstep.rank.transport.across import Across
from lockstep.rank.transport.contract import Transport


class NodeRows:
    """How one rank takes part. Collective: call the methods on every rank, with this node's row filled in on each.

    Args:
        nodes: which ranks are on which node.
        rank: this one.
        across: the connections to other nodes.
        frames: the ranks of this node.
    """

    def __init__(self, nodes: Nodes, rank: int, across: Across, frames: Transport) -> None:
        self._nodes, self._rank, self._across, self._frames = nodes, rank, across, frames
        self._node = nodes.node_of(rank)
        self._first = nodes.ranks(self._node).start
        self._others = [node for node in range(nodes.num_nodes) if node != self._node]
        self._num_parts = max(nodes.sizes)

    def exchange_small(self, rows: Tensor, tag: int) -> None:
        """Fill in the other nodes' rows; only the nodes' first ranks exchange: latency decides."""
        if self._rank == self._first:
            receives = [self._across.receive(rows[node], node, tag, small=True) for node in self._others]
            sends = [self._across.send(rows[self._node], node, tag, small=True) for node in self._others]
            firsts = [self._nodes.ranks(node)[0] for node in self._others]
            self._across.wait([*zip(receives + sends, firsts * 2, strict=True)], f"all_gather ({where()})")
        self._frames.broadcast(rows, 0)

    def exchange_large(self, rows: Tensor, tag: int) -> None:
        """Fill in the other nodes' rows; every rank of a node exchanges some parts."""
        parts = [piece(rows.shape[1], part, self._num_parts) for part in range(self._num_parts)]
        works = []
        for number, part in enumerate(parts):
            if self._carrier(number) == self._rank:
                for node in self._others:
                    peer = carrier(self._nodes, node, number, self._num_parts)
                    works.append((self._across.receive(rows[node, part], peer, tag), peer))
                    works.append((self._across.send(rows[self._node, part], peer, tag), peer))
        self._across.wait(works, f"all_gather ({where()})")
        for number, part in enumerate(parts):
            for node in self._others:
                self._frames.broadcast(rows[node, part], self._carrier(number) - self._first)

    def _carrier(self, part: int) -> int:
        return carrier(self._nodes, self._node, part, self._num_parts)
