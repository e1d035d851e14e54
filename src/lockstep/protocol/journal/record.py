"""One record of the journal: time, step, phase, operation and source line.

64 bytes, little-endian, with the sequence number first and last: a reader that sees two different ones caught the
writer in the middle and reads again. Texts (operations, file names) are once in a table; records hold their numbers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

FORMAT = struct.Struct("<QQqIHHHxxI16xQ")
"""sequence, time_ns, step, epoch, phase, operation, file, line, sequence again."""


class Phase(IntEnum):
    """What a rank does with its time."""

    START = 0
    """Before `lockstep.init`: imports."""
    SCRIPT = 1
    """In the script, outside everything below."""
    DATA = 2
    """Waiting for samples."""
    COMPUTE = 3
    """Inside a lane: forward and backward."""
    EXCHANGE = 4
    """Exchanging with other ranks; the operation says what."""
    UPDATE = 5
    """Between a step's lanes and its end: the optimizer."""
    EVALUATE = 6
    """Inside plain iteration of a prepared loader."""
    PAUSED = 7
    """In `breakpoint()`."""
    FAILED = 8
    FINISHED = 9


@dataclass(frozen=True)
class Record:
    """What a rank noted at one moment."""

    sequence: int
    """1 for the first record, without gaps; 0 for a ring without records."""
    time_ns: int
    """time.monotonic_ns(): the same clock for all processes of a node."""
    step: int
    """The current step, counted from 1; 0 before the first."""
    epoch: int
    phase: Phase
    operation: str
    file: str
    line: int
