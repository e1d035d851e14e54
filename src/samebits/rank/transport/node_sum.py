"""A sum over the lane tree on its way through the nodes: in memory, between nodes, and back; see `protocol.layout.crossing`."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from samebits.errors import PeerLost, SamebitsError
from samebits.protocol.journal.waiting_note import subject
from samebits.protocol.layout.placement import Crossing, Nodes, carrier, piece
from samebits.rank.caller import where
from samebits.rank.transport.across import Across, BackgroundThread, gradients
from samebits.rank.transport.channel import Scratch
from samebits.rank.transport.contract import Pending, Transport
from samebits.rank.transport.lost_rank import GuardedTransport, Loss, all_or_lost
from samebits.rank.transport.shared_memory import SharedMemoryTransport, add_up, tree_program


class SumPlan:
    """What one rank does in every sum of a crossing."""

    def __init__(self, crossing: Crossing, rank: int) -> None:
        self.crossing, nodes = crossing, crossing.nodes
        self.node = nodes.node_of(rank)
        mates = nodes.ranks(self.node)
        self.subtrees = [crossing.subtrees(node) for node in range(nodes.num_nodes)]
        self.mine = self.subtrees[self.node]
        self.others = [node for node in range(nodes.num_nodes) if node != self.node]
        self.parts = crossing.parts(rank)
        terms = [crossing.placement.subtrees(mate) for mate in mates]
        below = [[[term for term in each if root[0] <= term[0] < root[1]] for each in terms] for root in self.mine]
        self.programs = [
            (tree_program(each, root), bytes(map(len, each))) for each, root in zip(below, self.mine, strict=True)
        ]
        self.nodes = sorted(node for subtrees in self.subtrees for node in subtrees)
        """All nodes' subtrees, in lane order."""
        self.program = tree_program([self.nodes])
        mine = terms[rank - mates.start]
        self.terms = [[mine.index(term) for term in each[rank - mates.start]] for each in below]
        """For each subtree of the node, the numbers of this rank's partials that belong to it."""


class TransportOfSums(GuardedTransport):
    """What a `NodeSum` needs of the ranks' transport; `over_nodes` has it."""

    across: Across
    scratch: Scratch
    loss: Loss
    sender: BackgroundThread
    """Waits for sums of the node while the script's backward continues."""
    handing: list[tuple[SharedMemoryTransport, Any]]
    """Operations that hand a finished sum to the node's other ranks."""

    @abstractmethod
    def next_sum_tag(self) -> int:
        """The tag of the next sum; the same on every rank."""

    @abstractmethod
    def settle(self) -> None:
        """Wait until what is handed on has arrived."""


class NodeSum(Pending):
    """A sum on its way; see `protocol.layout.crossing`."""

    def __init__(
        self, transport: TransportOfSums, group: Transport, plan: SumPlan, partials: Sequence[Tensor], out: Tensor
    ) -> None:
        self.transport, self._plan, self._out = transport, plan, out
        # Other ranks read the partials, so they must live as long as this.
        self._partials = partials
        self._subject = subject.of
        self._group = group if isinstance(group, SharedMemoryTransport) else None
        self._tag = transport.next_sum_tag()
        self._carried = plan.crossing.carried(transport.rank, out.numel())
        size = self._carried.stop - self._carried.start
        self._adding: list[Any] = []
        self._works: list[tuple[Any, int]] = []
        self._handing: Any = None
        self._sent = threading.Event()
        if self._group is None:
            own = [partial[self._carried] for partial in partials]
        else:
            own = [transport.scratch.take(out, size) for _ in plan.mine]
            for row, numbers, program in zip(own, plan.terms, plan.programs, strict=True):
                terms = [partials[number] for number in numbers]
                self._adding.append(self._group.begin_range(terms, out.numel(), self._carried, row, program))
        self._own = own
        self._rows = dict(zip(plan.mine, own, strict=True))
        """What this rank carries of every subtree of every node."""
        for node in plan.others:
            self._rows |= {subtree: transport.scratch.take(out, size) for subtree in plan.subtrees[node]}
        self._receive()
        if self._group is None:
            self._send()
        else:
            # The node's sum takes time, in which the script's backward continues: another thread waits for it.
            transport.sender.do(self._send_when_added)

    def _pieces(self, part: int) -> list[slice]:
        """For each node, the elements of a part that it adds up."""
        crossing, size = self._plan.crossing, self._out.numel()
        whole = piece(size, part, crossing.num_parts)
        if crossing.in_one_step:
            return [whole] * crossing.nodes.num_nodes
        return [crossing.share(whole, node) for node in range(crossing.nodes.num_nodes)]

    def _in_row(self, row: Tensor, elements: slice) -> Tensor:
        start = self._carried.start
        return row[elements.start - start : elements.stop - start]

    def _receive(self) -> None:
        plan, across = self._plan, self.transport.across
        for part in plan.parts:
            mine = self._pieces(part)[plan.node]
            for node in plan.others if mine.stop > mine.start else []:
                peer = plan.crossing.carrier(node, part)
                for subtree in plan.subtrees[node]:
                    place = self._in_row(self._rows[subtree], mine)
                    self._works.append((across.receive(place, peer, self._tag), peer))

    @property
    def _node_group(self) -> SharedMemoryTransport:
        assert self._group is not None
        return self._group

    def _send_when_added(self) -> None:
        """Wait for what the node adds up, and send it; in the sender's thread."""
        try:
            for operation in self._adding:
                self._node_group.wait(operation, self._subject)
            self._send()
        except (PeerLost, RuntimeError) as error:
            self.transport.give_up(error if isinstance(error, PeerLost) else self.transport.across.lost(None))
        except SamebitsError as error:
            # Every rank of the node raises it by itself.
            self.transport.give_up(PeerLost(str(error)))
        finally:
            self._sent.set()

    def _send(self) -> None:
        plan, across = self._plan, self.transport.across
        for part in plan.parts:
            pieces = self._pieces(part)
            for node in plan.others:
                if pieces[node].stop > pieces[node].start:
                    peer = plan.crossing.carrier(node, part)
                    for row in self._own:
                        work = across.send(self._in_row(row, pieces[node]), peer, self._tag)
                        self._works.append((work, peer))

    @all_or_lost
    def give_up(self) -> None:
        self._exchange()
        self._give_back()

    def _exchange(self) -> None:
        """Wait until the nodes have each other's partials."""
        self.transport.settle()
        if self._group is not None:
            # The sender's wait for the node is noted by the compiled part.
            self._sent.wait()
            self.transport.loss.check()
        self._wait()

    def _wait(self) -> None:
        self.transport.across.wait(self._works, gradients())
        self._works.clear()

    def _give_back(self) -> None:
        self.transport.scratch.give_back(
            row for row in self._rows.values() if self._group is not None or all(row is not own for own in self._own)
        )
        self._rows.clear()

    @all_or_lost
    def advance(self, scale: float = 1.0) -> None:
        self._exchange()
        plan = self._plan
        if plan.crossing.in_one_step:
            if self._group is None:
                add_up([self._rows[node] for node in plan.nodes], self._out, plan.program, scale)
            else:
                self._spread([self._rows[node] for node in plan.nodes], plan.program, scale)
            return
        for part in plan.parts:
            self._add_share(self._pieces(part), part, scale)

    def _add_share(self, pieces: Sequence[slice], part: int, scale: float) -> None:
        plan, out, across = self._plan, self._out, self.transport.across
        mine = pieces[plan.node]
        terms = [self._in_row(self._rows[node], mine) for node in plan.nodes]
        add_up(terms, out[mine], plan.program, scale)
        for node in plan.others:
            peer, theirs = plan.crossing.carrier(node, part), pieces[node]
            if theirs.stop > theirs.start:
                self._works.append((across.receive(out[theirs], peer, self._tag), peer))
            if mine.stop > mine.start:
                self._works.append((across.send(out[mine], peer, self._tag), peer))

    def _spread(self, terms: Sequence[Tensor], program: bytes, scale: float) -> None:
        """Begin to send to the node's ranks what this rank carries."""
        assert self._group is not None
        self._handing = self._group.begin_spread(terms, self._carried, self._out, program, scale)
        self.transport.handing.append((self._group, self._handing))

    @all_or_lost
    def finish(self) -> None:
        self._wait()
        if self._group is not None:
            if not self._plan.crossing.in_one_step:
                self._spread([self._out[self._carried]], COPY, 1.0)
            self._group.wait(self._handing, self._subject)
        self._give_back()


COPY = bytes([0])
"""The program of a sum of one term."""


class NodeRows:
    """How one rank takes part. Collective: call the methods on every rank, with this node's row filled in on each.

    Args:
        across: the connections to other nodes.
    """

    def __init__(self, nodes: Nodes, rank: int, across: Across, frames: Transport) -> None:
        self._nodes, self._rank, self._across, self._frames = nodes, rank, across, frames
        self._node = nodes.node_of(rank)
        self._first = nodes.ranks(self._node).start
        self._others = [node for node in range(nodes.num_nodes) if node != self._node]
        self._num_parts = max(nodes.sizes)

    def exchange_small(self, rows: Tensor, tag: int) -> None:
        """Fill in the other nodes' rows; only the nodes' first ranks exchange, because latency decides."""
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
