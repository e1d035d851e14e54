"""The transport of a run with one rank: there is nothing to exchange, and the sums are the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from samebits.protocol.layout.lane_tree import fold
from samebits.protocol.layout.placement import Placement
from samebits.rank.transport.contract import Pending, Sent, Transport


class _LocalSum(Pending):
    def __init__(self, partials: Sequence[Tensor], placement: Placement, out: Tensor) -> None:
        self._partials, self._placement, self._out = partials, placement, out

    def advance(self, scale: float = 1.0) -> None:
        values = dict(zip(self._placement.subtrees(0), self._partials, strict=True))
        root = fold((0, self._placement.num_lanes), values, lambda left, right: left.add_(right))
        if root.data_ptr() != self._out.data_ptr():
            self._out.copy_(root)
        if scale != 1.0:
            self._out.mul_(scale)


class AloneTransport(Transport):
    """One rank that carries every lane."""

    rank = 0
    world_size = 1

    def exchange(self, operation: str, payload: bytes = b"", where: str = "") -> list[bytes]:  # noqa: ARG002
        return [payload]

    def all_gather_object(self, value: Any, operation: str = "", where: str = "") -> list[Any]:  # noqa: ARG002
        return [value]

    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        return [data]

    def begin_all_reduce(self, partials: Sequence[Tensor], placement: Placement, out: Tensor) -> Pending:
        return _LocalSum(partials, placement, out)

    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Leave the only rank's tensor as it is."""

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        return [tensor.clone()]

    def split(self, groups: Sequence[Sequence[int]]) -> Transport:  # noqa: ARG002 - there is one way to split one rank
        return self

    def send(self, data: Tensor, destination: int, tag: int) -> Sent:
        raise ValueError(f"one rank has no rank {destination} to send {data.shape} with tag {tag}")

    def receive(self, out: Tensor, source: int, tag: int) -> None:
        raise ValueError(f"one rank has no rank {source} to receive {out.shape} with tag {tag} from")

    def close(self) -> None:
        """Do nothing: nothing is held."""
