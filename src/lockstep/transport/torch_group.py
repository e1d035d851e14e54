"""The transport over torch.distributed: Gloo between CPU ranks, NCCL between GPUs.

The exact order costs no more wire than a ring: each rank gets one slice of every partial (all-to-all), adds the parts
in the lane tree's order, and hands the sum around (all-gather), as messages between pairs. For 40 MiB over two ranks
this took 32 ms; Gloo's own all-to-all and all-gather took 40 ms, and its all-reduce, which has no fixed order, 28 ms.
Below `SMALL_BYTES`, one all-gather of everything and a sum on every rank is faster, because latency decides; the bits
are the same, because the sum is element by element.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.caller import where
from lockstep.errors import PeerLost
from lockstep.journal.waiting_note import subject, waits
from lockstep.layout.placement import Placement
from lockstep.layout.tree import Node, fold
from lockstep.transport.alone import AloneTransport
from lockstep.transport.contract import Pending, Sent, Transport
from lockstep.transport.scratch import Scratch

LEFT = "another rank left in the middle of an exchange"

SMALL_BYTES = 32 * 1024
"""Partials up to this size are all-gathered whole."""

FIRST_OWN_TAG = 2**30
"""Tags from here on belong to `send` and `receive`, those below to reductions."""

PATIENCE = dt.timedelta(days=7)
"""How long an exchange may take. Finding out which rank is late is the launcher's job, not a timeout's."""

_all_gather_flat: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@contextmanager
def _waits(what: str, ranks: Iterable[int] = ()) -> Iterator[None]:
    """Note for which ranks this one waits, as long as it does; a failure there means that one is gone."""
    try:
        with waits(what, ranks):
            yield
    except RuntimeError as error:
        raise PeerLost(LEFT) from error


def _wait(work: Any) -> None:
    what = "the exchange of gradients"
    with _waits(what if subject.of is None else f"{what} ({subject.with_line(where())})"):
        work.wait()


def _bytes(tensor: Tensor) -> Tensor:
    """View a contiguous tensor as bytes: Gloo does not know every dtype, and moving data needs none."""
    return tensor.reshape(-1).view(torch.uint8)


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
        groups = groups or [range(dist.get_world_size())]
        mine = dist.get_rank()
        backend = "nccl" if device.type == "cuda" else "gloo"
        made = [[dist.new_group(ranks, PATIENCE, name) for name in ("gloo", backend)] for ranks in groups]
        number = next(number for number, ranks in enumerate(groups) if mine in ranks)
        self._device, self._ranks = device, tuple(groups[number])
        self._control, self._data = made[number]
        self.rank, self.world_size = self._ranks.index(mine), len(self._ranks)
        self.peers = [rank for rank in range(self.world_size) if rank != self.rank]
        self.scratch = Scratch()
        self._tag = 0

    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        everyone = torch.empty(self.world_size * len(data), dtype=torch.uint8)
        self._gather(everyone, mine, self._control)
        whole = everyone.numpy().tobytes()
        return [whole[start : start + len(data)] for start in range(0, len(whole), len(data))]

    def begin_all_reduce(self, partials: Sequence[Tensor], placement: Placement, out: Tensor) -> Pending:
        subtrees = [placement.subtrees(rank) for rank in range(self.world_size)]
        if out.nbytes <= SMALL_BYTES:
            return _GatheredSum(self, partials, subtrees, out)
        return _SlicedSum(self, partials, subtrees, out)

    def broadcast(self, tensor: Tensor, source: int) -> None:
        with _waits("broadcast", [self._ranks[source]]):
            dist.broadcast(_bytes(tensor), self._ranks[source], group=self._group_of(tensor))

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        everyone = tensor.new_empty((self.world_size, *tensor.shape))
        if tensor.numel():
            self._gather(_bytes(everyone), _bytes(tensor.contiguous()), self._group_of(tensor))
        return list(everyone.unbind(0))

    def split(self, groups: Sequence[Sequence[int]]) -> Transport:
        whole = [[self._ranks[rank] for rank in ranks] for ranks in groups]
        if all(len(ranks) == 1 for ranks in whole):
            return AloneTransport()
        return type(self)(self._device, whole)

    def send(self, data: Tensor, destination: int, tag: int) -> Sent:
        with _waits("send", [self._ranks[destination]]):
            sent: Sent | None = dist.isend(
                _bytes(data), self._ranks[destination], self._group_of(data), FIRST_OWN_TAG + tag
            )
        assert sent is not None
        return sent

    def receive(self, out: Tensor, source: int, tag: int) -> None:
        with _waits("receive", [self._ranks[source]]):
            dist.recv(_bytes(out), self._ranks[source], self._group_of(out), FIRST_OWN_TAG + tag)

    def close(self) -> None:
        if dist.is_initialized():
            for group in (self._control, self._data):
                dist.destroy_process_group(group)
        # A group that lives until the interpreter ends aborts the process there ("terminate called …"): let go now.
        self._control = self._data = None

    def begin_messages(self, sends: list[tuple[Tensor, int]], receives: list[tuple[Tensor, int]]) -> list[Any]:
        """Begin to send and receive contiguous tensors: (tensor, peer). Both sides leave out empty ones."""
        self._tag = (self._tag + 1) % 2**30
        found = [
            dist.P2POp(call, tensor, self._ranks[peer], self._data, self._tag)
            for call, messages in ((dist.irecv, receives), (dist.isend, sends))
            for tensor, peer in messages
            if tensor.numel()
        ]
        return dist.batch_isend_irecv(found) if found else []

    def begin_all_gather(self, out: Tensor, data: Tensor) -> Any:
        """Begin to collect equal parts into `out`, in rank order."""
        return _all_gather_flat(out, data, group=self._data, async_op=True)

    def begin_sum(self, data: Tensor) -> Any:
        """Begin to add `data` over the ranks, in place and in the backend's order."""
        return dist.all_reduce(data, group=self._data, async_op=True)

    def _group_of(self, tensor: Tensor) -> dist.ProcessGroup | None:
        """The process group for a tensor: CPU tensors go over Gloo even if gradients live on GPUs."""
        group: dist.ProcessGroup | None = self._data if tensor.device.type != "cpu" else self._control
        return group

    def _gather(self, out: Tensor, data: Tensor, group: dist.ProcessGroup | None) -> None:
        with _waits("all_gather", set(self._ranks) - {self._ranks[self.rank]}):
            _all_gather_flat(out, data, group=group)


class _GatheredSum(Pending):
    """A sum in which every rank gets every partial and adds them."""

    def __init__(
        self, transport: GroupTransport, partials: Sequence[Tensor], subtrees: list[list[Node]], out: Tensor
    ) -> None:
        self._subtrees, self._out = subtrees, out
        self._rows = max(map(len, subtrees))
        mine = out.new_zeros((self._rows, out.numel()))
        for row, partial in zip(mine, partials, strict=False):
            row.copy_(partial)
        self._all = out.new_empty((transport.world_size, self._rows, out.numel()))
        self._work = transport.begin_all_gather(self._all.view(-1), mine.view(-1))

    def advance(self, scale: float = 1.0) -> None:
        _wait(self._work)
        values = {
            node: self._all[rank, row] for rank, nodes in enumerate(self._subtrees) for row, node in enumerate(nodes)
        }
        total = fold((0, max(node[1] for node in values)), values, _add)
        self._out.copy_(total if scale == 1.0 else total.mul_(scale))

    def finish(self) -> None:
        """Do nothing: `advance` has done everything."""

    def give_up(self) -> None:
        _wait(self._work)


class _SlicedSum(Pending):
    """A sum in which rank r adds slice r of every partial and hands it around. Gloo's collectives copy more."""

    def __init__(
        self, transport: GroupTransport, partials: Sequence[Tensor], subtrees: list[list[Node]], out: Tensor
    ) -> None:
        self._transport, self._subtrees, self._partials, self._out = transport, subtrees, partials, out
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

    def advance(self, scale: float = 1.0) -> None:
        transport, out, mine = self._transport, self._out, self._slices[self._transport.rank]
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

    def finish(self) -> None:
        for work in self._works:
            _wait(work)

    def give_up(self, *, keep: bool = False) -> None:
        for work in self._works:
            _wait(work)
        if not keep:
            self._transport.scratch.give_back(self._received.values())
