"""Whether a rank that others wait for moves.

Nobody can know whether a loop will end. What can be seen is whether the rank uses the processor at changing lines, whether
processes that it started do, and whether it reads or writes files. Work does one of these. What waits for something, holds
a lock, or is stopped does none; a loop that never ends uses the processor, but mostly at the same one or two lines, with
the interpreter's lock in hand: native code that computes for long, a matrix product, gives it back meanwhile. What
is kept from running by others, a quota of its control group for instance, need not use as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.diagnosis.stack import Stack
from lockstep.machine.blocked import Blocked
from lockstep.machine.held_back import HeldBack

ENOUGH = 8
"""Samples before anything is said about movement."""
MOST_LINES_OF_A_LOOP = 2
BUSY = 0.1
"""The least share of a core that counts as using the processor."""
READS_BYTES_PER_S = 1 << 20
EXCHANGES_BYTES_PER_S = 1 << 15
"""Over sockets: an eighth of a link of 2 Mbit/s. What keeps connections alive is a hundredth of it."""
STARVED, TOLD_S = 0.5, 0.5
"""A rank that was kept from running for this share of the time, and had less processor time than so much, cannot have come
to other lines."""
PAGES_PER_S = 20
"""Pages of memory that it waited for: where memory is short, a rank comes from one to the next."""


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
    blocked: Blocked | None = None
    """Where its first thread is in the kernel."""
    worker: Blocked | None = None
    """The same of the loader worker for which it waits."""
    held_back: HeldBack | None = None
    """What kept it from running."""
    native: str = ""
    """The native function in which it is, if it was asked for: `sre_match (libpython3.11.so)`."""
    socket_bytes: int | None = None
    """Sent and received over its TCP connections; None if the kernel does not tell."""


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
    held = held_back_share(samples)
    busy = BUSY * (1 - held)
    is_starved = held >= STARVED and cores < TOLD_S / seconds
    pages = _pages_per_s(samples) >= PAGES_PER_S
    moves = (
        (cores >= busy and (changes or is_starved or _computes_in_native_code(samples)))
        or others >= busy
        or reads
        or pages
        or bool(exchanges(samples))
    )
    return Movement(cores + others, moves)


def exchanges(samples: Sequence[Sample]) -> bool | None:
    """Whether bytes come or go over its TCP connections; None while there are too few samples."""
    if len(samples) < ENOUGH:
        return None
    first, last = samples[0], samples[-1]
    if first.socket_bytes is None or last.socket_bytes is None:
        return False
    seconds = max(last.at_s - first.at_s, 1e-3)
    return (last.socket_bytes - first.socket_bytes) / seconds >= EXCHANGES_BYTES_PER_S


def _computes_in_native_code(samples: Sequence[Sample]) -> bool:
    """Whether it runs without the interpreter's lock in most samples: native code that computes gives it back meanwhile."""
    running = [sample for sample in samples if sample.stack is not None and sample.stack.threads]
    without = sum(
        sample.stack is not None
        and sample.stack.knows_gil
        and not sample.stack.threads[0].holds_gil
        and not (sample.blocked is not None and sample.blocked.is_asleep)
        for sample in running
    )
    return without > len(running) / 2


def held_back_share(samples: Sequence[Sample]) -> float:
    """For how much of the time others kept the rank from running: its control group, other processes. From 0 to 0.95."""
    first, last = samples[0], samples[-1]
    if first.held_back is None or last.held_back is None:
        return 0.0
    throttled_s = last.held_back.throttled_s - first.held_back.throttled_s if last.held_back.quota else 0.0
    held_s = throttled_s + last.held_back.run_delay_s - first.held_back.run_delay_s
    return min(held_s / max(last.at_s - first.at_s, 1e-3), 0.95)


def _pages_per_s(samples: Sequence[Sample]) -> float:
    first, last = samples[0], samples[-1]
    if first.held_back is None or last.held_back is None:
        return 0.0
    return (last.held_back.major_faults - first.held_back.major_faults) / max(last.at_s - first.at_s, 1e-3)
