"""The transport between CPU ranks on several nodes: shared memory inside a node, Gloo between counterparts.

A sum goes three ways. In its node's memory each rank adds up the slice that it carries of all the node's partials; it
exchanges that slice with the ranks that carry the same one on the other nodes, adds what came in the lane tree's order, and
scales once; then the node's ranks take the slices from each other. So the bytes that leave a node are those of a ring
(`protocol.layout.crossing`), and all ranks carry some. Small messages are gathered in the node, exchanged by the nodes'
first ranks, and broadcast in the node.

A rank that learns that another is gone gives the whole transport up: it ends its connections, and breaks its node's
groups, so every rank on every node raises `PeerLost`, wherever it waits.

Runs in: each rank, and a thread of it, named samebits sender.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store

from samebits.errors import EnvironmentFailure, PeerLost
from samebits.protocol.layout.placement import Nodes, Placement, carrier, choose_crossing, piece
from samebits.rank.caller import where
from samebits.rank.transport.across import Across, BackgroundThread, Watch, bytes_of
from samebits.rank.transport.alone import AloneTransport
from samebits.rank.transport.channel import Scratch
from samebits.rank.transport.contract import Pending, Sent, SeveralSums, Transport
from samebits.rank.transport.local.nodes_store import read_all
from samebits.rank.transport.lost_rank import GuardedMessage, Loss, all_or_lost
from samebits.rank.transport.node_sum import NodeRows, NodeSum, SumPlan, TransportOfSums
from samebits.rank.transport.shared_memory import SharedMemoryTransport

SMALL_BYTES = 32 * 1024
"""Up to this size only the first rank of each node exchanges: latency decides."""

CHUNK_BYTES = 4 << 20
"""Larger sums go in chunks."""

FIRST_OWN_TAG = 2**30
"""Tags from here on belong to `send` and `receive`; below them are those of collectives, and below `FIRST_SUM_TAG` those
that frames belong to, which ranks may call earlier or later among sums that begin during backward."""
FIRST_SUM_TAG = 2**29


class OverNodesTransport(TransportOfSums):
    """CPU ranks on several nodes. Collective: construct it on every rank.

    Args:
        store: shared by the ranks; nothing else uses its keys.
        names: the numbers of these ranks in the run; by default counted from 0.

    Raises:
        EnvironmentFailure: on every rank, when the ranks of a node cannot share memory, or nodes cannot connect.
    """

    def __init__(self, store: Store, rank: int, nodes: Nodes, names: Sequence[int] = ()) -> None:
        self.rank, self.world_size = rank, nodes.num_ranks
        self.nodes: Nodes = nodes
        self._names = names or range(self.world_size)
        self._node = nodes.node_of(rank)
        self._mates = nodes.ranks(self._node)
        self._store = store
        self._frames, self._sums = _rendezvous_in_node(store, rank, nodes, self._names)
        firsts = [nodes.ranks(node)[0] for node in range(nodes.num_nodes)]
        self.across = Across(PrefixStore("across", store), rank, self._names, firsts)
        self._rows = NodeRows(nodes, rank, self.across, self._frames)
        self.loss = Loss(self._end)
        self.is_reported: Callable[[], bool] = lambda: False
        """Asked 20 times a second, in a thread: whether the launcher knows of a node that is lost."""
        self._frame_tag = self._sum_tag = self._splits = 0
        self.sender = BackgroundThread("samebits sender")
        self._children: weakref.WeakSet[OverNodesTransport | SharedMemoryTransport] = weakref.WeakSet()
        self.handing: list[tuple[SharedMemoryTransport, Any]] = []
        self.scratch = Scratch()
        self._plans: dict[tuple[Placement, bool], SumPlan] = {}
        self._watch = Watch(self.across, self._groups, self.give_up, lambda: self.is_reported())  # noqa: PLW0108 - set later

    @property
    def _groups(self) -> list[SharedMemoryTransport]:
        return [group for group in (self._frames, self._sums) if isinstance(group, SharedMemoryTransport)]

    def _end(self, lost: PeerLost) -> None:
        for group in self._groups:
            group.give_up(lost)
        self.across.cut()
        for child in [*self._children]:
            child.give_up(lost)

    def explain(self, error: RuntimeError) -> PeerLost:  # noqa: ARG002 - Gloo's words name an address, not a rank
        return self.across.lost(None)

    def end_threads(self) -> None:
        self._watch.stop()
        self.sender.stop()
        self.across.waiter.stop()

    @all_or_lost
    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        if not data:
            return [b"" for _ in self._gather(torch.zeros(1, dtype=torch.uint8, device="cpu"), is_small=True)]
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        return [row.numpy().tobytes() for row in self._gather(mine, is_small=True)]

    @all_or_lost
    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        tensor = tensor.contiguous()
        if not tensor.numel():
            return [tensor.clone() for _ in range(self.world_size)]
        rows = self._gather(bytes_of(tensor), is_small=tensor.nbytes * max(self.nodes.sizes) <= SMALL_BYTES)
        return [row.clone().view(tensor.dtype).view(tensor.shape) for row in rows]

    def _gather(self, mine: Tensor, *, is_small: bool) -> list[Tensor]:
        """Every rank's bytes, of equal number: gather them in the node, exchange the nodes' blocks, broadcast these."""
        block = mine.numel() * max(self.nodes.sizes)
        tag = self._next_frame_tag()
        everyone = mine.new_zeros((self.nodes.num_nodes, block))
        own = torch.cat(self._frames.all_gather(mine))
        everyone[self._node, : own.numel()] = own
        if is_small:
            self._rows.exchange_small(everyone, tag)
        else:
            self._rows.exchange_large(everyone, tag)
        rows = everyone.view(self.nodes.num_nodes, -1, mine.numel())
        return [rows[node, row] for node, size in enumerate(self.nodes.sizes) for row in range(size)]

    @all_or_lost
    def broadcast(self, tensor: Tensor, source: int) -> None:
        data, tag, home = bytes_of(tensor), self._next_frame_tag(), self.nodes.node_of(source)
        num_parts = self._num_parts if data.numel() > SMALL_BYTES else 1
        parts = [piece(data.numel(), part, num_parts) for part in range(num_parts)]
        if home == self._node:
            self._frames.broadcast(data, source - self._mates.start)
        works = []
        for number, part in enumerate(parts):
            if carrier(self.nodes, self._node, number, num_parts) != self.rank:
                continue
            for node in self._other_nodes if home == self._node else [home]:
                peer = carrier(self.nodes, node, number, num_parts)
                move = self.across.send if home == self._node else self.across.receive
                works.append((move(data[part], peer, tag), peer))
        self.across.wait(works, f"broadcast from rank {self._names[source]} ({where()})")
        if home != self._node:
            for number, part in enumerate(parts):
                self._frames.broadcast(
                    data[part], carrier(self.nodes, self._node, number, num_parts) - self._mates.start
                )

    @property
    def _num_parts(self) -> int:
        return max(self.nodes.sizes)

    @property
    def _other_nodes(self) -> list[int]:
        return [node for node in range(self.nodes.num_nodes) if node != self._node]

    def _next_frame_tag(self) -> int:
        """A tag that the same exchange has on every rank."""
        self._frame_tag = (self._frame_tag + 1) % FIRST_SUM_TAG
        return self._frame_tag

    def next_sum_tag(self) -> int:
        """A tag that the same sum has on every rank."""
        self._sum_tag = (self._sum_tag + 1) % FIRST_SUM_TAG
        return FIRST_SUM_TAG + self._sum_tag

    @all_or_lost
    def begin_guarded(self, partials: Sequence[Tensor], placement: Placement, out: Tensor) -> Pending:
        key = placement, out.nbytes <= SMALL_BYTES
        if key not in self._plans:
            self._plans[key] = SumPlan(choose_crossing(self.nodes, placement, is_small=key[1]), self.rank)
        size = out.numel() if key[1] else -(-out.numel() // -(-out.nbytes // CHUNK_BYTES))
        begun = [
            NodeSum(
                self,
                self._sums,
                self._plans[key],
                [partial[start : start + size] for partial in partials],
                out[start : start + size],
            )
            for start in range(0, out.numel(), size)
        ]
        # One chunk is added up while the next is on its way.
        return SeveralSums(begun)

    def settle(self) -> None:
        """Finish what the node's ranks send each other, before this one waits for another node."""
        # [Note: why a rank settles before it waits for another node]
        # An exchange in memory moves on only while its ranks are inside the library. A mate whose part needs this rank would
        # wait for as long as the other node takes, and that node may wait for the mate.
        while self.handing:
            group, operation = self.handing.pop()
            group.wait(operation)

    def split(self, groups: Sequence[Sequence[int]]) -> Transport:
        self._splits += 1
        number = next(number for number, ranks in enumerate(groups) if self.rank in ranks)
        ranks, store = groups[number], PrefixStore(f"split {self._splits}/{number}", self._store)
        if len(ranks) == 1:
            return AloneTransport()
        nodes, names = self.nodes.among(ranks), [self._names[rank] for rank in ranks]
        child: OverNodesTransport | SharedMemoryTransport
        if nodes.num_nodes == 1:
            child = SharedMemoryTransport(store, ranks.index(self.rank), len(ranks), names)
        else:
            child = OverNodesTransport(store, ranks.index(self.rank), nodes, names)
        self._children.add(child)
        return child

    @all_or_lost
    def send(self, data: Tensor, destination: int, tag: int) -> Sent:
        if destination in self._mates:
            return self._frames.send(data, destination - self._mates.start, tag)
        works = [(self.across.send(data, destination, FIRST_OWN_TAG + tag), destination)]
        return GuardedMessage(self, data, lambda: self.across.wait(works, "send"))

    @all_or_lost
    def receive(self, out: Tensor, source: int, tag: int) -> None:
        if source in self._mates:
            self._frames.receive(out, source - self._mates.start, tag)
        else:
            self.across.wait([(self.across.receive(out, source, FIRST_OWN_TAG + tag), source)], "receive")

    @all_or_lost
    def allocate(self, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        problem, made = "", None
        try:
            made = self._sums.allocate(size, dtype, device)
        except PeerLost:
            raise
        except EnvironmentFailure as error:
            # Every rank of the node raises it.
            problem = str(error)
        if failed := [text for text in self.all_gather_object(problem, "allocate") if text]:
            if made is not None:
                self._sums.free(made)
            raise EnvironmentFailure(failed[0])
        assert made is not None
        return made

    def free(self, tensor: Tensor) -> None:
        self._sums.free(tensor)

    def close(self) -> None:
        self.end_threads()
        for group in (self._frames, self._sums):
            group.close()
        if self.loss.leave():
            self.across.close()


def _rendezvous_in_node(store: Store, rank: int, nodes: Nodes, names: Sequence[int]) -> tuple[Transport, Transport]:
    """Make two groups of this node's ranks, for frames and for sums."""
    # The operations of one group have one order on all ranks; frames come at other times among sums that began early.
    node = nodes.node_of(rank)
    mates = nodes.ranks(node)
    place, problem = rank - mates.start, ""
    made: list[Transport] = [AloneTransport(), AloneTransport()]
    try:
        if len(mates) > 1:
            numbers = [names[mate] for mate in mates]
            stores = [PrefixStore(f"{purpose} of node {node}", store) for purpose in ("frames", "sums")]
            made = [SharedMemoryTransport(one, place, len(mates), numbers) for one in stores]
    except PeerLost:
        raise
    except EnvironmentFailure as error:
        # Every rank of the node raises it.
        problem = str(error)
    if place == 0:
        store.set(f"memory/{node}", problem)
    for problem_there in read_all(store, [f"memory/{other}" for other in range(nodes.num_nodes)]):
        if problem_there:
            raise EnvironmentFailure(problem_there.decode())
    frames, sums = made
    return frames, sums
