"""What a rank waits for: a part of its journal's header, readable even when the rank is stopped or dead.

The rank's end is `lockstep.protocol.journal.waiting_note`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

TEXT_BYTES, WORDS, BITS = 368, 16, 64
FORMAT = struct.Struct(f"<Q{WORDS}Q{TEXT_BYTES}s")
"""Since when, 0 for not at all; a bit for each rank that is waited for; a text. native/src/wait_note.hpp has the same."""
SINCE = struct.Struct("<Q")
"""The beginning of it."""


@dataclass(frozen=True)
class Waiting:
    """A wait of one rank for others."""

    since_ns: int = 0
    """time.monotonic_ns() when it began; 0 when there is none."""
    behind: frozenset[int] = frozenset()
    """The ranks that are waited for, by their numbers in the run; empty when nobody knows which."""
    what: str = ""
    """In which operation, where in the script: `all_reduce(sum) of [4] float32 (train.py:88)`."""


def pack(waiting: Waiting) -> bytes:
    """The wait as `FORMAT.size` bytes; ranks from 1024 on and what is too long of the text are left out."""
    words = [0] * WORDS
    for rank in waiting.behind:
        if rank < WORDS * BITS:
            words[rank // BITS] |= 1 << rank % BITS
    text = waiting.what.encode(errors="backslashreplace")[: TEXT_BYTES - 1]
    return FORMAT.pack(waiting.since_ns, *words, text)


def unpack(data: bytes) -> Waiting:
    """The inverse of `pack`."""
    since_ns, *words, text = FORMAT.unpack(data)
    behind = frozenset(
        BITS * number + bit for number, word in enumerate(words) if word for bit in range(BITS) if word >> bit & 1
    )
    return Waiting(since_ns, behind, text.split(b"\0", 1)[0].decode(errors="replace"))
