"""Whether a rank that others wait for moves.

Nobody can know whether a loop will end. What can be seen is whether the rank uses the processor at changing lines, whether
processes that it started do, and whether it reads or writes files. Work does one of these. What waits for something, holds
a lock, or is stopped does none; a loop that never ends uses the processor, but mostly at the same one or two lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.diagnosis.stack import Stack

ENOUGH = 8
"""Samples before anything is said about movement."""
MOST_LINES_OF_A_LOOP = 2
BUSY = 0.1
"""The least share of a core that counts as using the processor."""
READS_BYTES_PER_S = 1 << 20


@dataclass(frozen=True)
class Sample:
    """A rank and the processes that load samples for it, at one moment."""

    at_s: float
    processor_s: float
    """The rank's processor time since it began."""
    others_s: float
    """That of the processes that it started: they load samples, or compile."""
    file_bytes: int
    """Read and written since they began."""
    stack: Stack | None
    """The rank's; None when it cannot be read."""
    workers: tuple[Stack, ...] = ()
    """Those of its loader workers, if it waits for samples."""


@dataclass(frozen=True)
class Movement:
    """What happened between the first and the last sample."""

    cores: float
    """Used, on average."""
    moves: bool


def movement(samples: Sequence[Sample]) -> Movement | None:
    """Whether it moves; None while there are too few samples."""
    if len(samples) < ENOUGH:
        return None
    first, last = samples[0], samples[-1]
    seconds = max(last.at_s - first.at_s, 1e-3)
    cores = (last.processor_s - first.processor_s) / seconds
    stacks = {sample.stack.main for sample in samples if sample.stack is not None and sample.stack.main}
    changes = len(stacks) > MOST_LINES_OF_A_LOOP or not stacks
    others = (last.others_s - first.others_s) / seconds
    reads = (last.file_bytes - first.file_bytes) / seconds >= READS_BYTES_PER_S
    return Movement(cores + others, moves=(cores >= BUSY and changes) or others >= BUSY or reads)
