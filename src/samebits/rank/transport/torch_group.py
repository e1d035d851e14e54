"""The transport between CPU ranks over Gloo, flat: where they share no memory.

The exact order costs no more wire than a ring: each rank gets one slice of every partial (all-to-all), adds the parts
in the lane tree's order, and sends the sum to all (all-gather), as messages between pairs. For 40 MiB over two ranks
this took 32 ms; Gloo's own all-to-all and all-gather took 40 ms, and its all-reduce, which has no fixed order, 28 ms.
Below `SMALL_BYTES`, one all-gather of everything and a sum on every rank is faster, because latency decides; the bits
are the same, because the sum is element by element.

Gloo sometimes does not wake a waiting thread when the connection ends, so `Across` waits for it, and a thread watches the
connections.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import AllgatherOptions, PrefixStore  # type: ignore[attr-defined]

from samebits.errors import PeerLost
from samebits.protocol.layout.lane_tree import Node, fold
from samebits.protocol.layout.placement import Placement
from samebits.rank.transport.across import Across, Watch, bytes_of, gradients, patient
from samebits.rank.transport.alone import AloneTransport
from samebits.rank.transport.channel import Scratch
from samebits.rank.transport.contract import Pending, Sent, Transport
from samebits.rank.transport.lost_rank import GuardedMessage, GuardedTransport, Loss, all_or_lost

SMALL_BYTES = 32 * 1024
"""Partials up to this size are all-gathered whole."""


class CollectiveTransport(GuardedTransport):
    """A transport over collectives of a backend of torch's."""

    @abstractmethod
    def begin_all_gather(self, out: Tensor, data: Tensor, *, is_sum: bool = False) -> Sequence[Any]:
        """Begin to collect equal parts into `out`, in rank order.

        Args:
            out: of all ranks.
            data: this rank's.
            is_sum: whether it is part of a sum, which ranks may begin earlier or later among other exchanges.
        """

    @abstractmethod
    def begin_sum(self, data: Tensor) -> Sequence[Any]:
        """Begin to add `data` over the ranks, in place and in the backend's order."""

    @abstractmethod
    def wait(self, works: Sequence[Any], what: str) -> None:
        """Wait for what has begun. Raises `PeerLost` when another rank is gone; `what` is what the rank waits for."""


def add(left: Tensor, right: Tensor) -> Tensor:
    """One addition of the tree, in place."""
    return left.add_(right)


class GatheredSum(Pending):
    """A sum in which every rank gets every partial and adds them."""

    def __init__(
        self,
        transport: CollectiveTransport,
        partials: Sequence[Tensor],
        subtrees: Sequence[Sequence[Node]],
        out: Tensor,
    ) -> None:
        self.transport, self._subtrees, self._out = transport, subtrees, out
        # An all-gather takes equal parts: a rank with fewer partials than others sends rows that are not added.
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

    @all_or_lost
    def give_up(self) -> None:
        self.transport.wait(self._works, gradients())


FIRST_OWN_TAG = 2**30
"""Tags from here on belong to `send` and `receive`, those below to reductions."""

Work = tuple[Any, int | None]
"""Something that has begun, and the other rank; a collective has none."""

_numbers = itertools.count()
"""Of the transports that this process has made; the same on all ranks, which make them together."""


class GroupTransport(CollectiveTransport):
    """Ranks of the default process group, or of a part of it. Collective: construct it on every rank.

    Args:
        groups: every rank of the default group once; the transport is for this rank's group. None: for all ranks.

    Construct it after `torch.distributed.init_process_group`.
    """

    def __init__(self, groups: Sequence[Sequence[int]] | None = None) -> None:
        groups, default = groups or [range(dist.get_world_size())], dist.group.WORLD
        assert default is not None
        mine = dist.get_rank()
        number = next(number for number, ranks in enumerate(groups) if mine in ranks)
        self._ranks = tuple(groups[number])
        self.rank, self.world_size = self._ranks.index(mine), len(self._ranks)
        store = PrefixStore(f"samebits transport {next(_numbers)}/{number}", default.get_group_store())
        self.across = Across(store, self.rank, self._ranks, range(self.world_size))
        self.peers = [rank for rank in range(self.world_size) if rank != self.rank]
        self.scratch = Scratch()
        self._tag = 0
        self.loss = Loss(lambda _: self.across.cut())
        self._watch = Watch(self.across, (), self.give_up, lambda: False)

    def explain(self, error: RuntimeError) -> PeerLost:  # noqa: ARG002 - Gloo's words name an address, not a rank
        return self.across.lost(None)

    def end_threads(self) -> None:
        self._watch.stop()
        self.across.waiter.stop()

    @all_or_lost
    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        everyone = torch.empty(self.world_size * len(data), dtype=torch.uint8, device="cpu")
        self.wait(self.begin_all_gather(everyone, mine), "all_gather")
        whole = everyone.numpy().tobytes()
        return [whole[start : start + len(data)] for start in range(0, len(whole), len(data))]

    @all_or_lost
    def begin_guarded(self, partials: Sequence[Tensor], placement: Placement, out: Tensor) -> Pending:
        subtrees = [placement.subtrees(rank) for rank in range(self.world_size)]
        if out.nbytes <= SMALL_BYTES:
            return GatheredSum(self, partials, subtrees, out)
        return _SlicedSum(self, partials, subtrees, out)

    @all_or_lost
    def broadcast(self, tensor: Tensor, source: int) -> None:
        options = patient(dist.BroadcastOptions())
        options.rootRank = source
        self.wait([(self.across.group(small=True).broadcast([bytes_of(tensor)], options), None)], "broadcast")

    @all_or_lost
    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        everyone = tensor.new_empty((self.world_size, *tensor.shape))
        if tensor.numel():
            self.wait(self.begin_all_gather(bytes_of(everyone), bytes_of(tensor.contiguous())), "all_gather")
        return list(everyone.unbind(0))

    def split(self, groups: Sequence[Sequence[int]]) -> Transport:
        whole = [[self._ranks[rank] for rank in ranks] for ranks in groups]
        if all(len(ranks) == 1 for ranks in whole):
            return AloneTransport()
        return type(self)(whole)

    @all_or_lost
    def send(self, data: Tensor, destination: int, tag: int) -> Sent:
        works = [(self.across.send(data, destination, tag + FIRST_OWN_TAG), destination)]
        return GuardedMessage(self, data, lambda: self.wait(works, "send"))

    @all_or_lost
    def receive(self, out: Tensor, source: int, tag: int) -> None:
        self.wait([(self.across.receive(out, source, tag + FIRST_OWN_TAG), source)], "receive")

    def close(self) -> None:
        self.end_threads()
        if self.loss.leave():
            self.across.close()

    def begin_messages(
        self, sends: Sequence[tuple[Tensor, int]], receives: Sequence[tuple[Tensor, int]]
    ) -> Sequence[Work]:
        """Begin to send and receive contiguous tensors: (tensor, peer). Both sides leave out empty ones."""
        self._tag = (self._tag + 1) % FIRST_OWN_TAG
        across = self.across
        calls = (across.receive, receives), (across.send, sends)
        return [(call(one, peer, self._tag), peer) for call, some in calls for one, peer in some if one.numel()]

    def begin_all_gather(self, out: Tensor, data: Tensor, *, is_sum: bool = False) -> Sequence[Work]:
        parts = [*out.view(self.world_size, -1).unbind(0)]
        return [
            (self.across.group(small=not is_sum).allgather([parts], [data.view(-1)], patient(AllgatherOptions())), None)
        ]

    def begin_sum(self, data: Tensor) -> Sequence[Work]:
        return [(self.across.group(small=False).allreduce([data], patient(dist.AllreduceOptions())), None)]

    def wait(self, works: Sequence[Work], what: str) -> None:
        self.across.wait(works, what)


class _SlicedSum(Pending):
    """A sum in which rank r adds slice r of every partial and sends it to all. Gloo's collectives copy more."""

    def __init__(
        self, transport: GroupTransport, partials: Sequence[Tensor], subtrees: Sequence[Sequence[Node]], out: Tensor
    ) -> None:
        self.transport, self._subtrees, self._partials, self._out = transport, subtrees, partials, out
        size = -(-out.numel() // transport.world_size)
        self._slices = [slice(start, min(start + size, out.numel())) for start in range(0, out.numel(), size)]
        # With more ranks than elements the last ones add up nothing.
        self._slices += [slice(0, 0)] * (transport.world_size - len(self._slices))
        mine = self._slices[transport.rank]
        self._received = {
            node: transport.scratch.take(out, mine.stop - mine.start)
            for peer in transport.peers
            for node in subtrees[peer]
        }
        receives = [(self._received[node], peer) for peer in transport.peers for node in subtrees[peer]]
        sends = [(partial[self._slices[peer]], peer) for peer in transport.peers for partial in partials]
        self._works = transport.begin_messages(sends, receives)

    @all_or_lost
    def advance(self, scale: float = 1.0) -> None:
        transport, out, mine = self.transport, self._out, self._slices[self.transport.rank]
        self.give_up(keep=True)
        own = {node: part[mine] for node, part in zip(self._subtrees[transport.rank], self._partials, strict=True)}
        values = self._received | own
        total = fold((0, max(node[1] for node in values)), values, add)
        if scale != 1.0:
            # Each rank scales its slice, once.
            total.mul_(scale)
        if total.data_ptr() != out[mine].data_ptr():
            out[mine].copy_(total)
        transport.scratch.give_back(self._received.values())
        receives = [(out[self._slices[peer]], peer) for peer in transport.peers]
        self._works = transport.begin_messages([(out[mine], peer) for peer in transport.peers], receives)

    @all_or_lost
    def finish(self) -> None:
        self.transport.wait(self._works, gradients())

    @all_or_lost
    def give_up(self, *, keep: bool = False) -> None:
        self.transport.wait(self._works, gradients())
        if not keep:
            self.transport.scratch.give_back(self._received.values())
