"""What a transport promises, and the frame that every small exchange carries.

There are two kinds of exchange. *Frames* are small, carry what the rank is doing and at which source line, and are
compared: if ranks are at different operations, every rank raises one sentence that names both lines, instead of waiting
forever or adding numbers that do not belong together. *Tensors* move without more checks, always after a frame that
described them.
"""

from __future__ import annotations

import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from samebits.errors import InternalError, PeerLost, UsageError
from samebits.protocol.journal.waiting_note import range_of_wait
from samebits.protocol.layout.placement import Nodes, Placement

FRAME_BYTES = 4096
_HEAD = struct.Struct("<I28s100s")
INLINE_BYTES = FRAME_BYTES - _HEAD.size


AT_THE_END = "the end of the script"
"""The operation of ranks that have nothing more to do."""


class Frame(NamedTuple):
    """What one rank is doing."""

    operation: str
    where: str
    payload: bytes = b""
    """Of a decoded frame it is left out."""

    def encode(self) -> bytes:
        # Of a long path the end is shown.
        head = _HEAD.pack(len(self.payload), self.operation.encode()[:28], self.where.encode()[-100:])
        return (head + self.payload[:INLINE_BYTES]).ljust(FRAME_BYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes) -> Frame:
        """Invert `encode`, but for the payload."""
        _, operation, where = _HEAD.unpack_from(data)
        return cls(_text(operation), _text(where))


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")


def disagreement(frames: Sequence[Frame]) -> UsageError:
    """The error when ranks are at different operations; frame r is rank r's."""
    ranks = sorted(range(len(frames)), key=lambda rank: (frames[rank].operation, frames[rank].where, rank))
    groups = []
    for (operation, where), members in groupby(ranks, key=lambda rank: (frames[rank].operation, frames[rank].where)):
        names = list(map(str, members))
        who = f"ranks {', '.join(names)} are" if len(names) > 1 else f"rank {names[0]} is"
        groups.append(f"{who} at {operation!r}" + (f" ({where})" if where else ""))
    error = UsageError(
        f"The ranks are not at the same place: {'; '.join(groups)}.",
        "Make the same calls in the same order on every rank: take them out of `if run.is_main:` and of conditions "
        "that differ between ranks.",
    )
    has_left = any(frame.operation == AT_THE_END for frame in frames)
    error.finding = "early-leaver" if has_left else "mismatched-collective"
    return error


class Pending(ABC):
    """A reduction that has begun. Call `advance` and `finish`, or `give_up`: on all ranks, in the same order."""

    @abstractmethod
    def advance(self, scale: float = 1.0) -> None:
        """Wait for the partials, add them in the tree's order, multiply by `scale`, begin to send the result to all.

        A `scale` of 1.0 multiplies nothing. From here on `out` is written to, not before.
        """

    def finish(self) -> None:  # noqa: B027 - many have done everything in `advance`
        """Wait until the whole result is in `out`."""

    def give_up(self) -> None:  # noqa: B027 - some have nothing under way
        """Wait until `partials` are no longer read, and drop the result: they changed in the meantime."""


class SeveralSums(Pending):
    """Several reductions as one."""

    def __init__(self, sums: Sequence[Pending]) -> None:
        self._sums = sums

    def advance(self, scale: float = 1.0) -> None:
        for one in self._sums:
            one.advance(scale)

    def finish(self) -> None:
        for one in self._sums:
            one.finish()

    def give_up(self) -> None:
        for one in self._sums:
            one.give_up()


class Sent(Protocol):
    """A message on its way."""

    def wait(self) -> object:
        """Wait until the message is delivered."""


@dataclass(frozen=True)
class SharedOnce:
    """A tensor that exists once, in memory that all ranks share."""

    mine: Tensor
    """This rank's view: it shows `master`, but only this rank sees what is written here."""
    master: Tensor
    """What every rank sees that has not written. Ranks must agree on who writes where and when."""
    was_written: Callable[[], bool]
    """Whether this rank wrote through `mine` since the last `forget_writes`. About 20 ns per 4 KiB."""
    forget_writes: Callable[[], None]
    """Let `mine` show `master` again."""


class Transport(ABC):
    """The exchange between the ranks of a run. Collective: call every method on every rank, in the same order.

    Raises (all methods): `PeerLost` when another rank is gone.
    """

    rank: int
    world_size: int
    begins_early = True
    """Whether a reduction makes progress while the rank does something else, so beginning it early pays off."""

    on_loss: Callable[[], None] | None = None
    """Called once, when another rank is lost, before `PeerLost` is raised: by `exchange`, and by `lost`."""

    nodes: Nodes | None = None
    """Which ranks are on which node, where the transport knows of several."""

    shares_memory = False
    """Whether the ranks share memory, so `allocate_once` works. The same on every rank."""

    def allocate(self, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Make a 1-D tensor of zeros in the memory that is cheapest to reduce. Collective: call it on every rank.

        `free` it in the same way.

        Raises:
            EnvironmentFailure: on every rank, when there is too little memory.
        """
        return torch.zeros(size, dtype=dtype, device=device)

    def allocate_once(self, size: int, dtype: torch.dtype, device: torch.device) -> SharedOnce:
        """Make one 1-D tensor of zeros for all ranks, on the CPU. Collective: call it on every rank.

        It has at least one element; only where `shares_memory`. `free` the master in the same way.
        """
        raise InternalError(f"{type(self).__name__} cannot share memory for {size} of {dtype} on {device}.")

    def free(self, tensor: Tensor) -> None:  # noqa: B027 - most have nothing to do
        """Make `tensor`, which `allocate` made, an ordinary tensor; its memory is freed when nothing holds it."""

    @abstractmethod
    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        """Return every rank's `data`, in rank order. All ranks must pass the same number of bytes."""

    @abstractmethod
    def begin_all_reduce(self, partials: Sequence[Tensor], placement: Placement, out: Tensor) -> Pending:
        """Begin the sum over the lane tree.

        Args:
            partials: one 1-D contiguous tensor for each of this rank's maximal subtrees
                (`placement.subtrees(rank)`), in that order; equal length, dtype and device on every rank. They may
                be overwritten, and must live until `finish`.
            placement: the lanes on the ranks; the same on every rank.
            out: 1-D contiguous, same length, dtype and device; every rank gets the root's value, to the bit what one
                rank that holds all lanes would compute; in 16 bits only for two partials, because some transports round
                once and others after each addition. It may be one of `partials`.
        """

    @abstractmethod
    def broadcast(self, tensor: Tensor, source: int) -> None:
        """Overwrite `tensor` (contiguous, same shape and dtype everywhere) with that of rank `source`."""

    @abstractmethod
    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return every rank's `tensor` (contiguous, same shape and dtype everywhere) as new tensors, in rank order."""

    @abstractmethod
    def split(self, groups: Sequence[Sequence[int]]) -> Transport:
        """Return a transport of the group that this rank is in; inside it, ranks count from 0.

        Args:
            groups: every rank once, each group in ascending order; the same on every rank.
        """

    @abstractmethod
    def send(self, data: Tensor, destination: int, tag: int) -> Sent:
        """Begin to send a 1-D contiguous tensor to one rank; it must not change until delivered.

        Messages from one rank to another with one tag arrive in order. Not a collective.
        """

    @abstractmethod
    def receive(self, out: Tensor, source: int, tag: int) -> None:
        """Overwrite `out` (1-D, contiguous, of the sent length and dtype) with the next message from `source`."""

    def look(self) -> None:  # noqa: B027 - one rank alone loses nobody
        """Raise what has gone wrong, also on other ranks: one that has ended, an error. Any thread may call it."""

    def give_up(self, lost: PeerLost) -> PeerLost:
        """Raise `lost` on every rank that waits here, or will; return what to raise here. Any thread may call it."""
        return lost

    @abstractmethod
    def close(self) -> None:
        """Release what the transport holds. Not a collective."""

    def lost(self) -> None:
        """Call `on_loss`, once. For callers that get a `PeerLost` out of exchanges of tensors, which `exchange` does not see."""
        on_loss, self.on_loss = self.on_loss, None
        if on_loss is not None:
            on_loss()

    def all_reduce(self, partials: Sequence[Tensor], placement: Placement, out: Tensor) -> None:
        """Call `begin_all_reduce` and wait."""
        pending = self.begin_all_reduce(partials, placement, out)
        pending.advance()
        pending.finish()

    def exchange(self, operation: str, payload: bytes = b"", where: str = "") -> list[bytes]:
        """Return every rank's payload (any sizes), in rank order, after all agreed that they are at `operation`.

        Args:
            operation: what this rank is doing, at most 28 bytes.
            payload: up to `INLINE_BYTES` bytes travel in one round, more in two.
            where: the user's source line, `file:line`, for the message when ranks disagree.

        Raises:
            UsageError: on every rank, when ranks are at different operations.
        """
        try:
            with range_of_wait(operation):
                return self._exchange(operation, payload, where)
        except PeerLost:
            self.lost()
            raise

    def _exchange(self, operation: str, payload: bytes, where: str) -> list[bytes]:
        frames = self.all_gather_bytes(Frame(operation, where, payload).encode())
        sizes, operations, _ = zip(*map(_HEAD.unpack_from, frames), strict=True)
        # The same operation at different source lines is allowed: an `if` may write `run.mean` twice.
        if len(set(operations)) > 1:
            raise disagreement([*map(Frame.decode, frames)])
        longest = max(sizes)
        if longest <= INLINE_BYTES:
            return [frame[_HEAD.size : _HEAD.size + size] for frame, size in zip(frames, sizes, strict=True)]
        # All ranks must pass equally many bytes, so the second round has the size of the longest payload.
        padded = -(-longest // FRAME_BYTES) * FRAME_BYTES
        payloads = self.all_gather_bytes(payload.ljust(padded, b"\0"))
        return [data[:size] for data, size in zip(payloads, sizes, strict=True)]

    def all_gather_object(self, value: Any, operation: str = "all_gather_object", where: str = "") -> list[Any]:
        """Return every rank's small JSON value, in rank order. Floats keep their bits."""
        return [json.loads(data.decode()) for data in self.exchange(operation, json.dumps(value).encode(), where)]

    def any(self, flag: bool, operation: str = "any", where: str = "") -> bool:
        """Whether `flag` is true on at least one rank."""
        return any(data == b"1" for data in self.exchange(operation, b"1" if flag else b"0", where))

    def all(self, flag: bool, operation: str = "all", where: str = "") -> bool:
        """Whether `flag` is true on every rank."""
        return all(data == b"1" for data in self.exchange(operation, b"1" if flag else b"0", where))

    def barrier(self, operation: str = "barrier", where: str = "") -> None:
        """Wait until every rank has called it."""
        self.exchange(operation, b"", where)
