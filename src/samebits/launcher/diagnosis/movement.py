"""Whether a rank that others wait for moves.

Nobody can know whether a loop will end. What can be seen is whether the rank and the processes that it started use the
processor, and whether data comes to them or leaves them. Work does one of these; what waits for something, holds a lock, or is
stopped does none. So a rank moves that uses 1 % of a core, whatever it does there; what is kept from running by others, a quota
of its control group for instance, need not use as much.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from samebits.launcher.diagnosis.stack import Stack
from samebits.machine.effort import Effort, HeldBack

ENOUGH, WINDOW_S = 8, 2.5
"""Samples, and the time between the first and the last one, before movement is judged."""
BUSY = 0.01
"""The least share of a core that counts as work. Looking for something ten times a second takes a tenth of it."""
BYTES_PER_S = 1 << 10
"""Over files, pipes and connections. What keeps a connection alive is a third of it."""
WAKES_PER_S = 3.0
"""How often data wakes a rank up; questions for its stack do so twice a second."""
EXCHANGES_BYTES_PER_S = 1 << 15
"""Over sockets, in an exchange: an eighth of a link of 2 Mbit/s. What keeps connections alive is a hundredth of it."""
PAGES_PER_S = 20
"""Pages of memory that it waited for: where memory is short, a rank comes from one to the next."""


@dataclass(frozen=True)
class Sample:
    """A rank and the processes that load samples for it, at one moment."""

    at_s: float
    effort: Effort
    """What it and the processes that it started have done: they load samples, or compile."""
    stack: Stack | None
    """The rank's; None when it cannot be read."""
    workers: tuple[Stack, ...] = ()
    """Those of its loader workers, if it waits for samples."""
    letter: str = ""
    """The state of its process as `ps` shows it: R, S, D, T."""
    held_back: HeldBack | None = None
    """What kept it from running."""
    socket_bytes: int | None = None
    """Sent and received over their TCP connections; None if the kernel does not tell."""
    answer_bytes: int = 0
    """What the rank has written because it was asked for its stack."""


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
    seconds = samples[-1].at_s - samples[0].at_s
    if seconds < WINDOW_S:
        return None
    cores = _grown(samples, lambda sample: sample.effort.processor_s) / seconds
    moved = _grown(samples, lambda sample: sample.effort.file_bytes - sample.answer_bytes)
    moved += _grown(samples, lambda sample: sample.socket_bytes or 0)
    moves = (
        # A rank that others keep from running cannot use its share of a core.
        cores >= BUSY * (1 - held_back_share(samples))
        or moved / seconds >= BYTES_PER_S
        or _wakes(samples) / seconds >= WAKES_PER_S
        or _pages_per_s(samples) >= PAGES_PER_S
    )
    return Movement(cores, moves)


def _grown(samples: Sequence[Sample], counter: Callable[[Sample], float]) -> float:
    """By how much a counter has grown; it also falls, when a process or a connection ends."""
    counts = [counter(sample) for sample in samples]
    return sum(max(after - before, 0.0) for before, after in itertools.pairwise(counts))


def _wakes(samples: Sequence[Sample]) -> int:
    """How often threads woke up that were in a read or write before and after."""
    pairs = [(before.effort.wakes, after.effort.wakes) for before, after in itertools.pairwise(samples)]
    return sum(
        max(after[thread] - before[thread], 0) for before, after in pairs for thread in before.keys() & after.keys()
    )


def exchanges(samples: Sequence[Sample]) -> bool | None:
    """Whether bytes come or go over its TCP connections; None while there are too few samples."""
    if len(samples) < ENOUGH:
        return None
    first, last = samples[0], samples[-1]
    if first.socket_bytes is None or last.socket_bytes is None:
        return False
    seconds = max(last.at_s - first.at_s, 1e-3)
    return (last.socket_bytes - first.socket_bytes) / seconds >= EXCHANGES_BYTES_PER_S


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
