"""The transport of ranks that share a GPU: tensors are copied to host memory, and another transport exchanges them there.

For tests and proofs with fewer GPUs than ranks (`protocol.gpu_sharing`): NCCL refuses two ranks on one device. Copies wait for
the device. The sums are computed by the CPU, in the lane tree's order, so they have the bits of any other transport.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.protocol.layout.placement import Placement
from lockstep.rank.transport.alone import AloneTransport
from lockstep.rank.transport.contract import Pending, Sent, Transport


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
        return _BroughtBack(
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


class _BroughtBack(Pending):
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
