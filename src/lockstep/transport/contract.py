"""What a transport promises.

Two kinds of exchange. *Frames* are small, carry what the rank is doing and at which source line, and are compared: if
ranks are at different operations, every rank raises one sentence that names both lines, instead of waiting forever or
adding numbers that do not belong together. *Tensors* move without further checks, always behind a frame that described
them.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from lockstep.errors import PromiseBroken
from lockstep.layout.placement import Placement
from lockstep.transport.frame import FRAME_BYTES, INLINE_BYTES, Frame, disagreement


class Pending(ABC):
    """A reduction that has begun. Either `advance` and `finish`, or `give_up`; on all ranks the same, in one order."""

    @abstractmethod
    def advance(self, scale: float = 1.0) -> None:
        """Wait for the partials, add them in the tree's order, multiply by `scale`, begin to hand the result around.

        A `scale` of 1.0 multiplies nothing. From here on `out` is written to, not before.
        """

    @abstractmethod
    def finish(self) -> None:
        """Wait until the whole result stands in `out`."""

    @abstractmethod
    def give_up(self) -> None:
        """Wait until `partials` are not read any more, and forget the result: they had changed meanwhile."""


class Sent(Protocol):
    """A message on its way."""

    def wait(self) -> object:
        """Return when the message is delivered."""


@dataclass(frozen=True)
class SharedOnce:
    """A tensor that lies once in the memory that all ranks share."""

    mine: Tensor
    """This rank's view: it shows `master`, but what is written here only this rank sees."""
    master: Tensor
    """What everyone sees who has not written. Ranks must agree who writes where and when."""
    was_written: Callable[[], bool]
    """Whether this rank wrote through `mine` since the last `forget_writes`. About 20 ns per 4 KiB."""
    forget_writes: Callable[[], None]
    """`mine` shows `master` again."""


class Transport(ABC):
    """The exchange between the ranks of a run. Every method must be called by every rank, in the same order.

    Raises (every method): `PeerLost` when another rank is gone.
    """

    rank: int
    world_size: int
    begins_early = True
    """Whether a reduction makes progress while the rank does something else, so that beginning it early pays."""

    shares_memory = False
    """Whether the ranks have memory in common, so that `allocate_once` works. The same on every rank."""

    def allocate(self, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A 1-D tensor of zeros in memory whose reductions cost least. Every rank must call it, and `free` it in turn.

        Raises:
            WorldError: on every rank, when there is too little memory.
        """
        return torch.zeros(size, dtype=dtype, device=device)

    def allocate_once(self, size: int, dtype: torch.dtype, device: torch.device) -> SharedOnce:
        """A 1-D tensor of zeros once for all ranks, of at least one element, on the CPU; only where `shares_memory`.

        Every rank must call it, and `free` the master in turn.
        """
        raise PromiseBroken(f"{type(self).__name__} shares no memory for {size} of {dtype} on {device}.")

    def free(self, tensor: Tensor) -> None:  # noqa: B027 - most have nothing to do
        """`tensor`, which `allocate` made, is an ordinary tensor from now on; its memory goes when nobody holds it."""

    @abstractmethod
    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        """The `data` of every rank, in rank order. All ranks must pass the same number of bytes."""

    @abstractmethod
    def begin_all_reduce(self, partials: Sequence[Tensor], placement: Placement, out: Tensor) -> Pending:
        """Begin the sum over the lane tree.

        Args:
            partials: one 1-D contiguous tensor for each of this rank's maximal subtrees
                (`placement.subtrees(rank)`), in that order; equal length, dtype and device on every rank. They may
                be overwritten, and must live until `finish`.
            placement: the lanes on the ranks; the same on every rank.
            out: 1-D contiguous, same length, dtype and device; every rank gets the root's value, to the bit what one
                rank that holds all lanes would compute; in 16 bits only for two partials, because some transports round once and
                others after each addition. It may be one of `partials`.
        """

    @abstractmethod
    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Overwrite `tensor` (contiguous, same shape and dtype everywhere) with that of the rank `source`."""

    @abstractmethod
    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """New tensors with every rank's `tensor` (contiguous, same shape and dtype everywhere), in rank order."""

    @abstractmethod
    def split(self, groups: Sequence[Sequence[int]]) -> Transport:
        """A transport of the group that this rank is in; ranks count anew inside.

        Args:
            groups: every rank once, each group in ascending order; the same on every rank.
        """

    @abstractmethod
    def send(self, data: Tensor, destination: int, tag: int) -> Sent:
        """Begin to send a 1-D contiguous tensor to one rank; it must not change until it is delivered.

        Messages from one rank to another with one tag arrive in order. Not a collective.
        """

    @abstractmethod
    def receive(self, out: Tensor, source: int, tag: int) -> None:
        """Overwrite `out` (1-D, contiguous, of the sent length and dtype) with the next message from `source`."""

    @abstractmethod
    def close(self) -> None:
        """Release what the transport holds. Not a collective."""

    def all_reduce(self, partials: Sequence[Tensor], placement: Placement, out: Tensor) -> None:
        """`begin_all_reduce` and wait."""
        pending = self.begin_all_reduce(partials, placement, out)
        pending.advance()
        pending.finish()

    def exchange(self, operation: str, payload: bytes = b"", where: str = "") -> list[bytes]:
        """Every rank's payload (any sizes), in rank order, after all agreed that they are at `operation`.

        Args:
            operation: what this rank is doing, at most 28 bytes.
            payload: up to `INLINE_BYTES` bytes travel in one round, more in two.
            where: the user's source line, `file:line`, for the sentence when ranks disagree.

        Raises:
            UsageError: on every rank, when ranks are at different operations.
        """
        frame = Frame(operation, where, payload)
        frames = [Frame.decode(data) for data in self.all_gather_bytes(frame.encode())]
        if mistake := disagreement(frames):
            raise mistake
        longest = max(frame.size for frame in frames)
        if longest <= INLINE_BYTES:
            return [frame.payload for frame in frames]
        padded = -(-longest // FRAME_BYTES) * FRAME_BYTES
        payloads = self.all_gather_bytes(payload.ljust(padded, b"\0"))
        return [data[: frame.size] for data, frame in zip(payloads, frames, strict=True)]

    def all_gather_object(self, value: Any, operation: str = "all_gather_object", where: str = "") -> list[Any]:
        """Every rank's small JSON value, in rank order. Floats keep their bits."""
        return [json.loads(data) for data in self.exchange(operation, json.dumps(value).encode(), where)]

    def any(self, flag: bool, operation: str = "any", where: str = "") -> bool:
        """Whether `flag` is true on at least one rank."""
        return any(data == b"1" for data in self.exchange(operation, b"1" if flag else b"0", where))

    def all(self, flag: bool, operation: str = "all", where: str = "") -> bool:
        """Whether `flag` is true on every rank."""
        return all(data == b"1" for data in self.exchange(operation, b"1" if flag else b"0", where))

    def barrier(self, operation: str = "barrier", where: str = "") -> None:
        """Return when every rank has called it."""
        self.exchange(operation, b"", where)
