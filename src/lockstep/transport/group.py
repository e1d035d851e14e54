"""The transport over torch.distributed: Gloo between CPU ranks, NCCL between GPUs.

The exact order costs no more wire than a ring: each rank gets one slice of every partial (all-to-all), adds the parts
in the lane tree's order, and hands the sum around (all-gather). Below `SMALL_BYTES` one all-gather of everything and
a sum on every rank is faster, because latency decides; the bits are the same, because the sum is element by element.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from lockstep.errors import PeerLost
from lockstep.layout.placement import Placement
from lockstep.layout.tree import Node, fold
from lockstep.transport.contract import Pending, Transport

SMALL_BYTES = 32 * 1024
"""Partials up to this size are gathered whole."""

PATIENCE = dt.timedelta(days=7)
"""How long an exchange may take. Finding out who is late is the launcher's work, not that of a timeout."""

_all_gather_flat: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def _wait(work: Any) -> None:
    try:
        work.wait()
    except RuntimeError as error:
        raise PeerLost(f"another rank left in the middle of an exchange ({error})") from error


def _add(left: Tensor, right: Tensor) -> Tensor:
    return left.add_(right)


class GroupTransport(Transport):
    """Ranks of the default process group.

    Args:
        device: where the tensors of reductions live: CPU goes over Gloo, CUDA over NCCL. Frames always go over Gloo.

    Must be constructed by every rank, after `torch.distributed.init_process_group`.
    """

    def __init__(self, device: torch.device) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self._control = dist.new_group(backend="gloo", timeout=PATIENCE)
        self._data = dist.new_group(backend="nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)

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
        try:
            dist.broadcast(tensor, source, group=self._data)
        except RuntimeError as error:
            raise PeerLost(str(error)) from error

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        everyone = tensor.new_empty((self.world_size, *tensor.shape))
        if tensor.numel():
            self._gather(everyone.view(-1), tensor.reshape(-1), self._data)
        return list(everyone.unbind(0))

    def close(self) -> None:
        if dist.is_initialized():
            for group in (self._control, self._data):
                dist.destroy_process_group(group)

    def begin_all_to_all(self, out: Tensor, data: Tensor, out_sizes: list[int], sizes: list[int]) -> Any:
        """Begin to send consecutive parts of `data` (sizes[r] elements to rank r); parts arrive in rank order."""
        return dist.all_to_all_single(out, data, out_sizes, sizes, group=self._data, async_op=True)

    def begin_all_gather(self, out: Tensor, data: Tensor) -> Any:
        """Begin to collect equal parts into `out`, in rank order."""
        return _all_gather_flat(out, data, group=self._data, async_op=True)

    def _gather(self, out: Tensor, data: Tensor, group: dist.ProcessGroup | None) -> None:
        try:
            _all_gather_flat(out, data, group=group)
        except RuntimeError as error:
            raise PeerLost(f"another rank left in the middle of an exchange ({error})") from error


class _GatheredSum(Pending):
    """Everybody gets every partial and adds them."""

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
        """`advance` has done everything."""

    def give_up(self) -> None:
        _wait(self._work)


class _SlicedSum(Pending):
    """Rank r adds slice r of every partial. One all-to-all for each of the most subtrees that a rank holds."""

    def __init__(
        self, transport: GroupTransport, partials: Sequence[Tensor], subtrees: list[list[Node]], out: Tensor
    ) -> None:
        self._transport, self._subtrees, self._out = transport, subtrees, out
        world_size = transport.world_size
        self._slice = -(-out.numel() // world_size)
        starts = [min(rank * self._slice, out.numel()) for rank in range(world_size + 1)]
        sizes = [end - start for start, end in pairwise(starts)]
        self._size = sizes[transport.rank]
        self._rounds = []
        for row in range(max(map(len, subtrees))):
            senders = [rank for rank in range(world_size) if row < len(subtrees[rank])]
            received = out.new_empty((len(senders), self._size))
            out_sizes = [self._size if rank in senders else 0 for rank in range(world_size)]
            mine = transport.rank in senders
            data, my_sizes = (partials[row], sizes) if mine else (out.new_empty(0), [0] * world_size)
            work = transport.begin_all_to_all(received.view(-1), data, out_sizes, my_sizes)
            self._rounds.append((work, received, senders, data))

    def give_up(self) -> None:
        for work, *_ in self._rounds:
            _wait(work)

    def advance(self, scale: float = 1.0) -> None:
        values: dict[Node, Tensor] = {}
        for row, (work, received, senders, _) in enumerate(self._rounds):
            _wait(work)
            values |= {self._subtrees[rank][row]: part for rank, part in zip(senders, received, strict=True)}
        total = fold((0, max(node[1] for node in values)), values, _add)
        if scale != 1.0:
            total.mul_(scale)  # each rank its slice, once
        self._rounds.clear()
        if self._out.numel() == self._slice * self._transport.world_size:
            self._gathered = self._out
        else:
            self._gathered = self._out.new_empty(self._slice * self._transport.world_size)
        self._mine = (
            total if len(total) == self._slice else torch.cat([total, total.new_zeros(self._slice - len(total))])
        )
        self._work = self._transport.begin_all_gather(self._gathered, self._mine)

    def finish(self) -> None:
        _wait(self._work)
        if self._gathered is not self._out:
            self._out.copy_(self._gathered[: self._out.numel()])
