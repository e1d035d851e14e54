"""Several ranks as threads of one process: the contract without a network, for tests of everything above it.

Runs in: threads of a test, one for each rank.

Tensors are copied on the way, so a rank that changes its own afterwards disturbs nobody.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from torch import Tensor

from samebits.errors import PeerLost
from samebits.protocol.layout.lane_tree import fold
from samebits.protocol.layout.placement import Placement
from samebits.rank.transport.contract import Pending, Sent, Transport

T = TypeVar("T")


class FakeWorld:
    """The meeting place of `world_size` threads."""

    def __init__(self, world_size: int, timeout_s: float = 60.0) -> None:
        self.world_size, self.timeout_s = world_size, timeout_s
        self._boxes: dict[tuple[int, int, int], queue.Queue[Tensor]] = {}
        self._lock = threading.Lock()
        self._values: list[Any] = [None] * world_size
        self._barrier = threading.Barrier(world_size, timeout=timeout_s)

    def meet(self, rank: int, value: Any) -> list[Any]:
        """Every rank's value, in rank order. Raises `PeerLost` when a rank has left."""
        try:
            self._values[rank] = value
            self._barrier.wait()
            everyone = list(self._values)
            # Nobody may put down its next value before all have taken these.
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise PeerLost("another rank left in the middle of an exchange") from None
        return everyone

    def box(self, source: int, destination: int, tag: int) -> queue.Queue[Tensor]:
        """Messages from one rank to another."""
        with self._lock:
            return self._boxes.setdefault((source, destination, tag), queue.Queue())

    def leave(self) -> None:
        """Break every current and future meeting."""
        self._barrier.abort()

    def run(self, rank_of: Callable[[Transport], T]) -> list[T]:
        """Call `rank_of` once per rank, each in its own thread; the results in rank order, or the first real error."""

        def one(rank: int) -> T:
            try:
                return rank_of(FakeTransport(self, rank))
            except BaseException:
                self.leave()
                raise

        with ThreadPoolExecutor(self.world_size) as pool:
            futures = [pool.submit(one, rank) for rank in range(self.world_size)]
        errors = [error for future in futures if (error := future.exception()) is not None]
        # A rank that only lost its peers is not the reason.
        for error in sorted(errors, key=lambda error: isinstance(error, PeerLost)):
            raise error
        return [future.result() for future in futures]


class FakeTransport(Transport):
    """One thread's end of a `FakeWorld`."""

    def __init__(self, world: FakeWorld, rank: int) -> None:
        self.rank, self.world_size, self._world = rank, world.world_size, world

    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        everyone: list[bytes] = self._world.meet(self.rank, data)
        return everyone

    def begin_all_reduce(self, partials: Sequence[Tensor], placement: Placement, out: Tensor) -> Pending:
        return _FakeSum(self._world, self.rank, [partial.clone() for partial in partials], placement, out)

    def broadcast(self, tensor: Tensor, source: int) -> None:
        tensor.copy_(self._world.meet(self.rank, tensor.clone())[source])

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        return [other.clone() for other in self._world.meet(self.rank, tensor.clone())]

    def split(self, groups: Sequence[Sequence[int]]) -> Transport:
        mine = next(tuple(ranks) for ranks in groups if self.rank in ranks)
        offered = {ranks: FakeWorld(len(ranks)) for ranks in map(tuple, groups)} if self.rank == 0 else {}
        worlds = self._world.meet(self.rank, offered)[0]
        return FakeTransport(worlds[mine], mine.index(self.rank))

    def send(self, data: Tensor, destination: int, tag: int) -> Sent:
        self._world.box(self.rank, destination, tag).put(data.clone())
        return _Delivered()

    def receive(self, out: Tensor, source: int, tag: int) -> None:
        try:
            out.copy_(self._world.box(source, self.rank, tag).get(timeout=self._world.timeout_s))
        except queue.Empty:
            raise PeerLost("another rank left in the middle of an exchange") from None

    def close(self) -> None:
        """Do nothing: threads end on their own."""


class _Delivered:
    def wait(self) -> None:
        """Do nothing: the message was copied when it was sent."""


class _FakeSum(Pending):
    def __init__(self, world: FakeWorld, rank: int, partials: list[Tensor], placement: Placement, out: Tensor) -> None:
        self._world, self._rank, self._partials, self._placement, self._out = world, rank, partials, placement, out

    def advance(self, scale: float = 1.0) -> None:
        everyone = self._world.meet(self._rank, self._partials)
        values = {
            node: partial
            for rank, partials in enumerate(everyone)
            for node, partial in zip(self._placement.subtrees(rank), partials, strict=True)
        }
        total = fold((0, self._placement.num_lanes), values, lambda left, right: left + right)
        self._out.copy_(total if scale == 1.0 else total * scale)
