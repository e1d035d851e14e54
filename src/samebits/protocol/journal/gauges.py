"""What the header of a journal says of its rank: the gauges, written once a step, and the wait.

Both can be read at any time, also when the rank is stopped or dead.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields

FORMAT = struct.Struct("<12qd")


@dataclass(frozen=True)
class Gauges:
    """A snapshot. Times are sums in nanoseconds since `samebits.init`; samples are this rank's own."""

    epoch: int = 0
    """The current epoch, counted from 1; 0 before the first."""
    num_epochs: int = 0
    """0 when the script does not use `run.epochs`."""
    step: int = 0
    """Steps finished since the start, over all epochs."""
    step_in_epoch: int = 0
    steps_per_epoch: int = 0
    samples: int = 0
    """Training samples that this rank's lanes had."""
    data_ns: int = 0
    compute_ns: int = 0
    exchange_ns: int = 0
    update_ns: int = 0
    script_ns: int = 0
    """Of the script itself, after its first step."""
    num_losses: int = 0
    """Passes that had a loss; while it is 0, `loss` means nothing."""
    loss: float = float("nan")
    """The loss of the last step: the weighted mean over all lanes."""


def pack(gauges: Gauges) -> bytes:
    """The gauges as `FORMAT.size` bytes."""
    return FORMAT.pack(*vars(gauges).values())


def listed(gauges: Gauges) -> list[float]:
    """The gauges as a list, for JSON."""
    return list(vars(gauges).values())


def unlist(values: Sequence[float]) -> Gauges:
    """The inverse of `listed`."""
    counts = {field.name: int(value) for field, value in zip(fields(Gauges)[:-1], values[:-1], strict=True)}
    return Gauges(**counts, loss=values[-1])


def unpack(data: bytes) -> Gauges:
    """The inverse of `pack`."""
    return Gauges(*FORMAT.unpack(data))


# What a rank waits for; its own end is `waiting_note`

TEXT_BYTES, WORDS, BITS = 368, 16, 64
WAITING = struct.Struct(f"<Q{WORDS}Q{TEXT_BYTES}s")
"""Since when, 0 for not at all; a bit for each rank that is waited for; a text. native/src/wait_note.hpp has the same."""
SINCE = struct.Struct("<Q")
"""The beginning of it."""


@dataclass(frozen=True)
class Waiting:
    since_ns: int = 0
    """time.monotonic_ns() when it began; 0 when there is none."""
    behind: frozenset[int] = frozenset()
    """The ranks that are waited for, by their numbers in the run; empty when nobody knows which."""
    what: str = ""
    """In which operation, where in the script: `all_reduce(sum) of [4] float32 (train.py:88)`."""


def pack_waiting(waiting: Waiting) -> bytes:
    """The wait as `WAITING.size` bytes; ranks from 1024 on and what is too long of the text are left out."""
    words = [0] * WORDS
    for rank in waiting.behind:
        if rank < WORDS * BITS:
            words[rank // BITS] |= 1 << rank % BITS
    text = waiting.what.encode(errors="backslashreplace")[: TEXT_BYTES - 1]
    return WAITING.pack(waiting.since_ns, *words, text)


def unpack_waiting(data: bytes) -> Waiting:
    """The inverse of `pack_waiting`."""
    since_ns, *words, text = WAITING.unpack(data)
    behind = frozenset(
        BITS * number + bit for number, word in enumerate(words) if word for bit in range(BITS) if word >> bit & 1
    )
    return Waiting(since_ns, behind, text.split(b"\0", 1)[0].decode(errors="replace"))
