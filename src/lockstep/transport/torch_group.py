"""The transport over torch.distributed: Gloo between CPU ranks, NCCL between GPUs.

The exact order costs no more wire than a ring: each rank gets one slice of every partial (all-to-all), adds the parts
in the lane tree's order, and hands the sum around (all-gather), as messages between pairs. For 40 MiB over two ranks
this took 32 ms; Gloo's own all-to-all and all-gather took 40 ms, and its all-reduce, which has no fixed order, 28 ms.
Below `SMALL_BYTES`, one all-gather of everything and a sum on every rank is faster, because latency decides; the bits
are the same, because the sum is element by element.

Gloo sometimes forgets one who waits when the connection ends, so `Across` waits for it, and a thread watches the connections.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import AllgatherOptions, PrefixStore  # type: ignore[attr-defined]

from lockstep.caller import where
from lockstep.errors import PeerLost
from lockstep.journal.torch_words import is_of_a_peer
from lockstep.journal.waiting_note import subject, waits
from lockstep.layout.placement import Placement
from lockstep.layout.tree import Node, fold
from lockstep.transport.across import PATIENCE, Across, bytes_of
from lockstep.transport.all_or_lost import all_or_lost
from lockstep.transport.alone import AloneTransport
from lockstep.transport.contract import Pending, Sent, Transport
from lockstep.transport.node_sum import LostSum
from lockstep.transport.scratch import Scratch
from lockstep.transport.watch import Watch

LEFT = "another rank left in the middle of an exchange"

SMALL_BYTES = 32 * 1024
"""Partials up to this size are all-gathered whole."""

FIRST_OWN_TAG = 2**30
"""Tags from here on belong to `send` and `receive`, those below to reductions."""

Work = tuple[Any, int | None]
"""Something that has begun, and the other rank; a collective has none."""

_numbers = itertools.count()
"""Of the transports that this process has made; the same on all ranks, which make them together."""

_all_gather_flat: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@contextmanager
def _waits(what: str, ranks: Iterable[int] = ()) -> Iterator[None]:
    """Note for which ranks this one waits, as long as it does; tell the end of one from a failure of this one's device."""
    try:
        with waits(what, ranks):
            yield
    except RuntimeError as error:
        if is_of_a_peer(error):
            raise PeerLost(f"{LEFT} ({str(error).partition(chr(10))[0]})") from error
        raise


def _patient(options: Any) -> Any:
    """Options of a collective over Gloo."""
    options.timeout = PATIENCE
    return options


def _gradients() -> str:
    what = "the exchange of gradients"
    return what if subject.of is None else f"{what} ({subject.with_line(where())})"


def _add(left: Tensor, right: Tensor) -> Tensor:
    return left.add_(right)


class GroupTransport(Transport):
    """Ranks of the default process group, or of a part of it. Collective: construct it on every rank.

    Args:
        device: where the tensors of reductions live: CPU goes over Gloo, CUDA over NCCL. Frames always go over Gloo.
        groups: every rank of the default group once; the transport is for this rank's group. None: for all ranks.

    Construct it after `torch.distributed.init_process_group`.
    """

    def __init__(self, device: torch.device, groups: Sequence[Sequence[int]] | None = None) -> None:
        groups, default = groups or [range(dist.get_world_size())], dist.group.WORLD
        assert default is not None
        mine = dist.get_rank()
        number = next(number for number, ranks in enumerate(groups) if mine in ranks)
        self._device, self._ranks = device, tuple(groups[number])
        self.rank, self.world_size = self._ranks.index(mine), len(self._ranks)
        made = [dist.new_group(ranks, PATIENCE, "nccl") if device.type == "cuda" else None for ranks in groups]
        self._on_gpus = made[number]
        store = PrefixStore(f"lockstep transport {next(_numbers)}/{number}", default.get_group_store())
        self.across = Across(store, self.rank, self._ranks, range(self.world_size))
        self.peers = [rank for rank in range(self.world_size) if rank != self.rank]
        self.scratch = Scratch()
        self._tag = 0
        self._lost: PeerLost | None = None
        self._losing = threading.Lock()
        self._watch = Watch(self.across, (), self.give_up, lambda: False)

    @property
    def transport(self) -> GroupTransport:
        """This one; what is guarded has one."""
        return self

    def check(self) -> None:
        """Raise `PeerLost` if the transport was given up."""
        if self._lost is not None:
            raise self._lost

    def give_up(self, lost: PeerLost) -> PeerLost:
        """Let every rank's exchanges fail, now and from now on; return what to raise. Any thread may call it."""
        with self._losing:
            if self._lost is None:
                self._lost = lost
                self.across.cut()
            return PeerLost(str(self._lost), is_dead=self._lost.is_dead)

    def lose(self, lost: PeerLost) -> PeerLost:
        """`give_up`, and end this rank's threads; not for those themselves."""
        lost = self.give_up(lost)
        self._end_threads()
        return lost

    def _end_threads(self) -> None:
        self._watch.stop()
        self.across.waiter.stop()

    @all_or_lost
    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        everyone = torch.empty(self.world_size * len(data), dtype=torch.uint8, device="cpu")
        self.wait(self.begin_all_gather(everyone, mine), "all_gather", mine)
        whole = everyone.numpy().tobytes()
        return [whole[start : start + len(data)] for start in range(0, len(whole), len(data))]

    def begin_all_reduce(self, partials: Sequence[Tensor], placement: Placement, out: Tensor) -> Pending:
        """Begin; a loss is raised when the sum is waited for, not out of somebody's backward."""
        try:
            return self.begin_guarded(partials, placement, out)
        except PeerLost as lost:
            return LostSum(lost)

    @all_or_lost
    def begin_guarded(self, partials: Sequence[Tensor], placement: Placement, out: Tensor) -> Pending:
        """Begin, or raise `PeerLost`."""
        subtrees = [placement.subtrees(rank) for rank in range(self.world_size)]
        if out.nbytes <= SMALL_BYTES:
            return _GatheredSum(self, partials, subtrees, out)
        return _SlicedSum(self, partials, subtrees, out)

    @all_or_lost
    def broadcast(self, tensor: Tensor, source: int) -> None:
        if tensor.device.type != "cpu":
            with _waits("broadcast", [self._ranks[source]]):
                dist.broadcast(bytes_of(tensor), self._ranks[source], group=self._on_gpus)
            return
        options = _patient(dist.BroadcastOptions())
        options.rootRank = source
        self.wait([(self.across.group(small=True).broadcast([bytes_of(tensor)], options), None)], "broadcast", tensor)

    @all_or_lost
    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        everyone = tensor.new_empty((self.world_size, *tensor.shape))
        if tensor.numel():
            self.wait(self.begin_all_gather(bytes_of(everyone), bytes_of(tensor.contiguous())), "all_gather", tensor)
        return list(everyone.unbind(0))

    def split(self, groups: Sequence[Sequence[int]]) -> Transport:
        whole = [[self._ranks[rank] for rank in ranks] for ranks in groups]
        if all(len(ranks) == 1 for ranks in whole):
            return AloneTransport()
        return type(self)(self._device, whole)

    @all_or_lost
    def send(self, data: Tensor, destination: int, tag: int) -> Sent:
        tag += FIRST_OWN_TAG
        if data.device.type == "cpu":
            return _Sent(self, [(self.across.send(data, destination, tag), destination)], data)
        with _waits("send", [self._ranks[destination]]):
            sent: Sent | None = dist.isend(bytes_of(data), self._ranks[destination], self._on_gpus, tag)
        assert sent is not None
        return sent

    @all_or_lost
    def receive(self, out: Tensor, source: int, tag: int) -> None:
        tag += FIRST_OWN_TAG
        if out.device.type == "cpu":
            self.wait([(self.across.receive(out, source, tag), source)], "receive", out)
            return
        with _waits("receive", [self._ranks[source]]):
            dist.recv(bytes_of(out), self._ranks[source], self._on_gpus, tag)

    def close(self) -> None:
        self._end_threads()
        if self._lost is None:
            self._lost = PeerLost("This rank has left the others.")
            self.across.close()
        if self._on_gpus is not None and dist.is_initialized():
            dist.destroy_process_group(self._on_gpus)
        self._on_gpus = None

    def begin_messages(
        self, sends: Sequence[tuple[Tensor, int]], receives: Sequence[tuple[Tensor, int]]
    ) -> Sequence[Work]:
        """Begin to send and receive contiguous tensors: (tensor, peer). Both sides leave out empty ones."""
        self._tag = (self._tag + 1) % FIRST_OWN_TAG
        if self._on_gpus is None:
            across = self.across
            calls = (across.receive, receives), (across.send, sends)
            return [(call(one, peer, self._tag), peer) for call, some in calls for one, peer in some if one.numel()]
        found = [
            dist.P2POp(call, tensor, self._ranks[peer], self._on_gpus, self._tag)
            for call, messages in ((dist.irecv, receives), (dist.isend, sends))
            for tensor, peer in messages
            if tensor.numel()
        ]
        return [(work, None) for work in (dist.batch_isend_irecv(found) if found else [])]

    def begin_all_gather(self, out: Tensor, data: Tensor, *, is_sum: bool = False) -> Sequence[Work]:
        """Begin to collect equal parts into `out`, in rank order.

        Args:
            out: of all ranks.
            data: this rank's.
            is_sum: whether it is part of a sum, which ranks may begin earlier or later among other exchanges.
        """
        if out.device.type != "cpu":
            return [(_all_gather_flat(out, data, group=self._on_gpus, async_op=True), None)]
        parts = [*out.view(self.world_size, -1).unbind(0)]
        return [
            (
                self.across.group(small=not is_sum).allgather([parts], [data.view(-1)], _patient(AllgatherOptions())),
                None,
            )
        ]

    def begin_sum(self, data: Tensor) -> Sequence[Work]:
        """Begin to add `data` over the ranks, in place and in the backend's order."""
        if self._on_gpus is not None:
            return [(dist.all_reduce(data, group=self._on_gpus, async_op=True), None)]
        return [(self.across.group(small=False).allreduce([data], _patient(dist.AllreduceOptions())), None)]

    def wait(self, works: Sequence[Work], what: str, moved: Tensor) -> None:
        """Wait until all have ended. Raises `PeerLost` when another rank is gone.

        Args:
            works: what has begun.
            what: what the rank waits for.
            moved: one of the tensors; those on GPUs go over NCCL.
        """
        if moved.device.type == "cpu":
            self.across.wait(works, what)
            return
        with _waits(what):
            for work, _ in works:
                work.wait()


class _Sent:
    """A message on its way."""

    def __init__(self, transport: GroupTransport, works: Sequence[Work], data: Tensor) -> None:
        self.transport, self._works, self._data = transport, works, data

    @all_or_lost
    def wait(self) -> object:
        self.transport.wait(self._works, "send", self._data)
        return None


class _GatheredSum(Pending):
    """A sum in which every rank gets every partial and adds them."""

    def __init__(
        self, transport: GroupTransport, partials: Sequence[Tensor], subtrees: list[list[Node]], out: Tensor
    ) -> None:
        self.transport, self._subtrees, self._out = transport, subtrees, out
        self._rows = max(map(len, subtrees))
        mine = out.new_zeros((self._rows, out.numel()))
        for row, partial in zip(mine, partials, strict=False):
            row.copy_(partial)
        self._all = out.new_empty((transport.world_size, self._rows, out.numel()))
        self._works = transport.begin_all_gather(self._all.view(-1), mine.view(-1), is_sum=True)

    def advance(self, scale: float = 1.0) -> None:
        self.give_up()
        values = {
            node: self._all[rank, row] for rank, nodes in enumerate(self._subtrees) for row, node in enumerate(nodes)
        }
        total = fold((0, max(node[1] for node in values)), values, _add)
        self._out.copy_(total if scale == 1.0 else total.mul_(scale))

    def finish(self) -> None:
        """Do nothing: `advance` has done everything."""

    @all_or_lost
    def give_up(self) -> None:
        self.transport.wait(self._works, _gradients(), self._out)


class _SlicedSum(Pending):
    """A sum in which rank r adds slice r of every partial and hands it around. Gloo's collectives copy more."""

    def __init__(
        self, transport: GroupTransport, partials: Sequence[Tensor], subtrees: list[list[Node]], out: Tensor
    ) -> None:
        self.transport, self._subtrees, self._partials, self._out = transport, subtrees, partials, out
        size = -(-out.numel() // transport.world_size)
        self._slices = [slice(start, min(start + size, out.numel())) for start in range(0, out.numel(), size)]
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
        total = fold((0, max(node[1] for node in values)), values, _add)
        if scale != 1.0:
            total.mul_(scale)  # each rank scales its slice, once
        if total.data_ptr() != out[mine].data_ptr():
            out[mine].copy_(total)
        transport.scratch.give_back(self._received.values())
        receives = [(out[self._slices[peer]], peer) for peer in transport.peers]
        self._works = transport.begin_messages([(out[mine], peer) for peer in transport.peers], receives)

    @all_or_lost
    def finish(self) -> None:
        self.transport.wait(self._works, _gradients(), self._out)

    @all_or_lost
    def give_up(self, *, keep: bool = False) -> None:
        self.transport.wait(self._works, _gradients(), self._out)
        if not keep:
            self.transport.scratch.give_back(self._received.values())
