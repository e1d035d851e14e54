"""A transport that outlives the death of other ranks: an exchange that lost one begins again with its replacement.

Ranks agree on where they are without a word. An exchange of frames ends on one rank only when every rank has given what
it had to give, so then it can end on all; if it cannot end on one, it ends on none. Sums of tensors get this by a
barrier behind them. So all that are left stop at one and the same exchange, with what they gave to it, or its result,
still in hand, and make it again when somebody has taken the dead rank's place.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from lockstep.errors import PeerLost, WorldError
from lockstep.layout.placement import Placement
from lockstep.transport.contract import Pending, Sent, SharedOnce, Transport
from lockstep.transport.frame import Frame
from lockstep.transport.history import History

Result = TypeVar("Result")


class Rejoin(Protocol):
    """How the ranks that are left meet the replacement."""

    def __call__(self, lost: PeerLost) -> Transport:
        """Wait for the replacement, and return the transport of the new generation.

        Raises:
            PeerLost: when there will be none.
        """


class OutlivingTransport(Transport):
    """Stands in front of the transport of one generation of ranks, and of the next.

    Args:
        inner: the ranks as they are now.
        history: what a new rank hears again; on a replacement, what it hears itself.
    """

    begins_early = False
    outlives = True

    def __init__(self, inner: Transport, history: History) -> None:
        self._inner, self.history = inner, history
        self.rank, self.world_size, self.shares_memory = inner.rank, inner.world_size, inner.shares_memory
        self.rejoin: Rejoin | None = None
        """Set once there is something that a replacement could take over."""
        self.on_live: Callable[[], None] | None = None
        """Called once, when a replacement has caught up: its first exchange with the others is over."""
        self.is_whole = False
        """Whether exchanges that belong together are under way."""

    def whole(self, exchange: Callable[[], Result], undo: Callable[[], None] | None = None) -> Result:
        if self.is_whole:
            return exchange()
        self.is_whole = True
        try:
            result = self._again_until_done(lambda: self._and_barrier(exchange), undo)
        finally:
            self.is_whole = False
        self.history.gap = "in the middle of a step, after its gradients were exchanged"
        return result

    def _and_barrier(self, exchange: Callable[[], Result]) -> Result:
        result = exchange()
        self._inner.all_gather_bytes(b"")
        return result

    def _again_until_done(self, exchange: Callable[[], Result], undo: Callable[[], None] | None = None) -> Result:
        again = 0
        while True:
            try:
                result = exchange()
                break
            except PeerLost as lost:
                if self.rejoin is None:
                    raise
                if undo is not None:
                    undo()
                self._inner.give_up(lost)  # what is under way here must not go on while others look at what is left
                self._inner = self.rejoin(lost)
                again = 1
                lost.__traceback__ = None
                gc.collect()  # what the last generation shared hangs on frames that raised
        self.generation += again
        if self.on_live is not None:
            live, self.on_live = self.on_live, None
            self.generation += 1
            live()
        return result

    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        if self.is_whole:
            return self._inner.all_gather_bytes(data)
        if self.history.replays:
            return self._heard_again(data)
        heard = self._again_until_done(lambda: self._inner.all_gather_bytes(data))
        self.history.note(heard)
        return heard

    def _heard_again(self, data: bytes) -> list[bytes]:
        """What the others heard, with this rank's own word from before it was replaced."""
        heard = self.history.next()
        if len(heard) != self.world_size or len(heard[self.rank]) != len(data):
            raise self._another_way()
        return heard

    def _another_way(self) -> WorldError:
        return WorldError(f"Rank {self.rank} was started again, but its script did not come to the same exchanges.")

    def exchange(self, operation: str, payload: bytes = b"", where: str = "") -> list[bytes]:
        if self.history.replays and not self.is_whole:
            heard = self.history.peek()
            if not heard or Frame.decode(heard[self.rank]).operation != operation:
                raise self._another_way()
        return super().exchange(operation, payload, where)

    def _whole_tensors(self, exchange: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Exchange tensors, which a new rank hears again too."""
        if self.is_whole:
            return exchange()
        tensors = self._again_until_done(lambda: self._and_barrier(exchange))
        if self.history.keeps:
            self.history.note([one.reshape(-1).view(torch.uint8).numpy().tobytes() for one in tensors])
        return tensors

    def broadcast(self, tensor: Tensor, source: int) -> None:
        if self.history.replays and not self.is_whole:
            _fill(tensor, self.history.next()[0])
            return

        def broadcast() -> list[Tensor]:
            self._inner.broadcast(tensor, source)
            return [tensor]

        self._whole_tensors(broadcast)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        if self.history.replays and not self.is_whole:
            heard = self.history.next()
            found = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in heard]
            for one, data in zip(found, heard, strict=True):
                _fill(one, data)
            return found
        return self._whole_tensors(lambda: self._inner.all_gather(tensor))

    def begin_all_reduce(self, partials: Sequence[Tensor], placement: Placement, out: Tensor) -> Pending:
        return self._inner.begin_all_reduce(partials, placement, out)

    def can_recover(self, partials: Sequence[Tensor], out: Tensor) -> bool:
        return self._inner.can_recover(partials, out)

    def begin_recoverable(self, partials: Sequence[Tensor], placement: Placement, out: Tensor) -> Pending:
        return self._inner.begin_recoverable(partials, placement, out)

    def allocate(self, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        if self.history.replays:
            self.history.next()
            return super().allocate(size, dtype, device)
        try:
            made = self._inner.allocate(size, dtype, device)
        except PeerLost as lost:
            if self.rejoin is None or not lost.is_dead:
                raise
            made = super().allocate(size, dtype, device)  # the next exchange ends this generation, and what it shares
        self.history.note([])
        return made

    def allocate_once(self, size: int, dtype: torch.dtype, device: torch.device) -> SharedOnce:
        if self.history.replays:
            self.history.next()
            return self._apart(size, dtype, device)
        try:
            made = self._inner.allocate_once(size, dtype, device)
        except PeerLost as lost:
            if self.rejoin is None or not lost.is_dead:
                raise
            made = self._apart(size, dtype, device)
        self.history.note([])
        return made

    def _apart(self, size: int, dtype: torch.dtype, device: torch.device) -> SharedOnce:
        """Memory of this rank's own, until the ranks share some again: `generation` will have changed."""
        own = super().allocate(size, dtype, device)
        return SharedOnce(own, own, lambda: False, lambda: None)

    def tear(self, why: str) -> None:
        self.history.tear(why)

    def unheard(self) -> AbstractContextManager[None]:
        return self.history.unkept("")

    def free(self, tensor: Tensor) -> None:
        self._inner.free(tensor)

    def split(self, groups: Sequence[Sequence[int]]) -> Transport:
        return self._inner.split(groups)

    def send(self, data: Tensor, destination: int, tag: int) -> Sent:
        return self._inner.send(data, destination, tag)

    def receive(self, out: Tensor, source: int, tag: int) -> None:
        self._inner.receive(out, source, tag)

    def close(self) -> None:
        self._inner.close()


def _fill(tensor: Tensor, data: bytes) -> None:
    flat = (
        torch.frombuffer(bytearray(data), dtype=torch.uint8)
        if data
        else torch.empty(0, dtype=torch.uint8, device="cpu")
    )
    tensor.copy_(flat.view(tensor.dtype).view(tensor.shape))
