"""The frame: what every small exchange carries, so ranks notice when they are not at the same place.

4 KiB: the payload's size, the operation, the source line, and up to 3,964 bytes of payload.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from lockstep.errors import UsageError

FRAME_BYTES = 4096
_HEAD = struct.Struct("<I28s100s")
INLINE_BYTES = FRAME_BYTES - _HEAD.size


AT_THE_END = "the end of the script"
"""The operation of ranks that have nothing more to do."""


class Frame(NamedTuple):
    """What one rank is doing."""

    operation: str
    where: str
    payload: bytes
    size: int = -1
    """The payload's full size; the `payload` of a decoded frame holds at most `INLINE_BYTES` of it."""

    def encode(self) -> bytes:
        """Encode to `FRAME_BYTES` bytes."""
        head = _HEAD.pack(len(self.payload), self.operation.encode()[:28], self.where.encode()[-100:])
        return (head + self.payload[:INLINE_BYTES]).ljust(FRAME_BYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes) -> Frame:
        """Invert `encode`, but for the part of the payload that does not fit."""
        size, operation, where = _HEAD.unpack_from(data)
        payload = data[_HEAD.size : _HEAD.size + min(size, INLINE_BYTES)]
        return cls(_text(operation), _text(where), payload, size)


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")


def disagreement(frames: Sequence[Frame]) -> UsageError | None:
    """The error when ranks are at different operations (frame r is rank r's), else None.

    The same operation at different source lines is allowed: an `if` may write `run.mean` twice.
    """
    if len({frame.operation for frame in frames}) == 1:
        return None
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
