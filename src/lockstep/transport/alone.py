"""The transport of a run with one rank: nothing to exchange, the same sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lockstep.layout.placement import Placement
from lockstep.layout.tree import fold
from lockstep.transport.contract import Pending, Transport


class _Done(Pending):
    def advance(self) -> None:
        """Nothing is left to do."""

    def finish(self) -> None:
        """Nothing is left to wait for."""


class AloneTransport(Transport):
    """One rank that carries every lane."""

    rank = 0
    world_size = 1

    def exchange(self, operation: str, payload: bytes = b"", where: str = "") -> list[bytes]:
        return [payload]

    def all_gather_object(self, value: Any, operation: str = "all_gather_object", where: str = "") -> list[Any]:
        return [value]

    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        return [data]

    def begin_all_reduce(self, partials: Sequence[Tensor], placement: Placement, out: Tensor) -> Pending:
        values = dict(zip(placement.subtrees(0), partials, strict=True))
        root = fold((0, placement.num_lanes), values, lambda left, right: left.add_(right))
        if root.data_ptr() != out.data_ptr():
            out.copy_(root)
        return _Done()

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """The only rank's tensor stays."""

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        return [tensor.clone()]

    def close(self) -> None:
        """Nothing is held."""
