"""The transport between ranks with a GPU each: what lies on devices goes over NCCL, all else as between ranks of the CPU.

Frames and tensors of the CPU go through the transport that the ranks would have without GPUs: shared memory on one node,
memory and Gloo over several, Gloo alone without the compiled part. It knows which ranks have ended. NCCL does not: a rank on the same
node that is gone leaves the others' devices waiting. So a thread looks 20 times a second, and ends what is under way on this
rank's device, whose next exchange then raises `PeerLost`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store

from samebits.errors import PeerLost
from samebits.protocol.journal.waiting_note import waits
from samebits.protocol.layout.placement import Placement
from samebits.rank.transport.across import Watch
from samebits.rank.transport.alone import AloneTransport
from samebits.rank.transport.channel import Scratch
from samebits.rank.transport.contract import Pending, Sent, Transport
from samebits.rank.transport.device_sums import BackendSum, SlicedOnDevices
from samebits.rank.transport.lost_rank import GuardedMessage, Loss, all_or_lost
from samebits.rank.transport.nccl import Nccl, abort_default_group
from samebits.rank.transport.torch_group import SMALL_BYTES, CollectiveTransport, GatheredSum

LEFT = "another rank left in the middle of an exchange"


class GpuTransport(CollectiveTransport):
    """Ranks with a GPU each. Collective: construct it on every rank.

    Args:
        control: of the same ranks, for tensors of the CPU.
        store: shared by the ranks; nothing else uses its keys.
        names: the numbers of these ranks in the run; by default counted from 0.
        exact: whether sums have the lane tree's order; otherwise NCCL's.
    """

    def __init__(self, control: Transport, store: Store, names: Sequence[int] = (), *, exact: bool = True) -> None:
        self.control = control
        self.rank, self.world_size = control.rank, control.world_size
        self._store, self._names, self._is_exact = store, names or range(control.world_size), exact
        self._splits = 0
        self.nccl = Nccl(PrefixStore("nccl", store), self.rank, self.world_size)
        self.nccl.connect()
        self.scratch = Scratch()
        self.loss = Loss(self._end)
        self._watch = Watch(None, [control], self.give_up, lambda: False)

    def _end(self, lost: PeerLost) -> None:
        # What waits on this rank's device must end, whatever comes of the other transport.
        try:
            self.control.give_up(lost)
        finally:
            self.nccl.abort()
            abort_default_group()

    def explain(self, error: RuntimeError) -> PeerLost:
        return PeerLost(f"{LEFT} ({str(error).partition(chr(10))[0]})", is_dead=True)

    def end_threads(self) -> None:
        self._watch.stop()

    @all_or_lost
    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        return self.control.all_gather_bytes(data)

    def begin_all_reduce(self, partials: Sequence[Tensor], placement: Placement, out: Tensor) -> Pending:
        if out.device.type == "cpu":
            return self.control.begin_all_reduce(partials, placement, out)
        return super().begin_all_reduce(partials, placement, out)

    @all_or_lost
    def begin_guarded(self, partials: Sequence[Tensor], placement: Placement, out: Tensor) -> Pending:
        if not self._is_exact:
            return BackendSum(self, partials, out)
        subtrees = [placement.subtrees(rank) for rank in range(self.world_size)]
        if out.nbytes <= SMALL_BYTES:
            return GatheredSum(self, partials, subtrees, out)
        return SlicedOnDevices(self, (self.nccl, self.scratch), partials, subtrees, out)

    @all_or_lost
    def broadcast(self, tensor: Tensor, source: int) -> None:
        if tensor.device.type == "cpu":
            self.control.broadcast(tensor, source)
        elif tensor.numel():
            self.wait([self.nccl.broadcast(tensor, source)], "broadcast", [source])

    @all_or_lost
    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        if tensor.device.type == "cpu":
            return self.control.all_gather(tensor)
        everyone = tensor.new_empty((self.world_size, *tensor.shape))
        if tensor.numel():
            # As bytes, because NCCL does not know every dtype.
            moved = everyone.view(-1).view(torch.uint8), tensor.contiguous().view(-1).view(torch.uint8)
            self.wait(self.begin_all_gather(*moved), "all_gather")
        return list(everyone.unbind(0))

    def split(self, groups: Sequence[Sequence[int]]) -> Transport:
        self._splits += 1
        control = self.control.split(groups)
        number = next(number for number, ranks in enumerate(groups) if self.rank in ranks)
        if len(groups[number]) == 1:
            control.close()
            return AloneTransport()
        store = PrefixStore(f"split {self._splits}/{number}", self._store)
        return GpuTransport(control, store, [self._names[rank] for rank in groups[number]], exact=self._is_exact)

    @all_or_lost
    def send(self, data: Tensor, destination: int, tag: int) -> Sent:
        if data.device.type == "cpu":
            return self.control.send(data, destination, tag)
        works = [self.nccl.send(data, destination)]
        return GuardedMessage(self, data, lambda: self.wait(works, "send", [destination]))

    @all_or_lost
    def receive(self, out: Tensor, source: int, tag: int) -> None:
        if out.device.type == "cpu":
            self.control.receive(out, source, tag)
        else:
            self.wait([self.nccl.receive(out, source)], "receive", [source])

    def allocate(self, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        if device.type == "cpu":
            return self.control.allocate(size, dtype, device)
        return super().allocate(size, dtype, device)

    def free(self, tensor: Tensor) -> None:
        if tensor.device.type == "cpu":
            self.control.free(tensor)

    def close(self) -> None:
        self._watch.stop()
        if self.loss.leave():
            self.nccl.close()
        self.control.close()

    def begin_all_gather(self, out: Tensor, data: Tensor, *, is_sum: bool = False) -> Sequence[Any]:  # noqa: ARG002
        return [self.nccl.all_gather(out, data)]

    def begin_sum(self, data: Tensor) -> Sequence[Any]:
        return [self.nccl.add_up(data)]

    def wait(self, works: Sequence[Any], what: str, peers: Sequence[int] = ()) -> None:
        """See `CollectiveTransport`: what has begun is over for the device. `peers` are the other ranks, by default all."""
        with waits(what, [self._names[peer] for peer in peers or range(self.world_size) if peer != self.rank]):
            for work in works:
                work.wait()


class HostMemoryTransport(Transport):
    """Stands in front of a transport for tensors of the CPU; those go through it as they are.

    Args:
        inner: of the same ranks.
    """

    begins_early = False

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.rank, self.world_size = inner.rank, inner.world_size

    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        return self._inner.all_gather_bytes(data)

    def begin_all_reduce(self, partials: Sequence[Tensor], placement: Placement, out: Tensor) -> Pending:
        if out.device.type == "cpu":
            return self._inner.begin_all_reduce(partials, placement, out)
        total = torch.empty_like(out, device="cpu")
        return _CopiedBack(
            self._inner.begin_all_reduce([_on_host(one) for one in partials], placement, total), total, out
        )

    def broadcast(self, tensor: Tensor, source: int) -> None:
        host = _on_host(tensor)
        self._inner.broadcast(host, source)
        if host is not tensor:
            tensor.copy_(host)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        return [one.to(tensor.device) for one in self._inner.all_gather(_on_host(tensor))]

    def split(self, groups: Sequence[Sequence[int]]) -> Transport:
        inner = self._inner.split(groups)
        return inner if isinstance(inner, AloneTransport) else HostMemoryTransport(inner)

    def send(self, data: Tensor, destination: int, tag: int) -> Sent:
        return self._inner.send(_on_host(data), destination, tag)

    def receive(self, out: Tensor, source: int, tag: int) -> None:
        host = out if out.device.type == "cpu" else torch.empty_like(out, device="cpu")
        self._inner.receive(host, source, tag)
        if host is not out:
            out.copy_(host)

    def close(self) -> None:
        self._inner.close()


def _on_host(tensor: Tensor) -> Tensor:
    """The tensor in host memory; itself where it is there already."""
    return tensor if tensor.device.type == "cpu" else tensor.detach().cpu()


class _CopiedBack(Pending):
    """A sum in host memory that ends on the device."""

    def __init__(self, inner: Pending, total: Tensor, out: Tensor) -> None:
        self._inner, self._total, self._out = inner, total, out

    def advance(self, scale: float = 1.0) -> None:
        self._inner.advance(scale)

    def finish(self) -> None:
        self._inner.finish()
        self._out.copy_(self._total)

    def give_up(self) -> None:
        self._inner.give_up()
