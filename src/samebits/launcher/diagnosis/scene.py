"""What can be seen of one rank from outside: what it does and waits for now, and what that takes as a rule."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from statistics import median

from samebits.launcher.diagnosis.movement import Sample
from samebits.launcher.diagnosis.stack import Stack, collective, is_in_backward
from samebits.protocol.journal.ring import Phase, Record


class Life(Enum):
    RUNS = auto()
    """It computes, or sleeps."""
    STOPPED = auto()
    """By SIGSTOP or a terminal; or a debugger has it."""
    ENDED = auto()


@dataclass(frozen=True)
class Doing:
    """The last line of a rank's journal."""

    phase: Phase
    operation: str
    step: int
    """The steps that have ended, or the one under way; 0 before the first."""
    place: str
    """`train.py:31`; empty if no line is known."""
    lasts_s: float
    usual_s: float | None
    """The median of what this phase took so far on this rank; None if it has never ended."""


@dataclass(frozen=True)
class Wait:
    """A rank's wait for others."""

    lasts_s: float
    behind: frozenset[int]
    """For whom; empty when nobody knows."""
    what: str
    """In which operation, where in the script."""


@dataclass(frozen=True)
class RankScene:
    rank: int
    life: Life
    doing: Doing | None
    """None when the script keeps no journal."""
    wait: Wait | None
    samples: tuple[Sample, ...] = ()
    """Of a rank that is suspected: what it and its loader workers did in the last seconds, oldest first."""
    told_moves: bool | None = None
    """Of a rank on another node: whether it moves, as that node reported; None if it did not."""


# What a phase takes

TOOK_KEPT = 33
"""Durations of each phase."""


class Pace:
    """What each phase of a rank takes as a rule, learned from its journal.

    A phase is told apart by its operation, without the numbers in it: `lane 3` is as `lane 0`.
    """

    def __init__(self) -> None:
        self._took_s: dict[tuple[Phase, str], deque[float]] = {}
        self._seen = 0

    def learn(self, records: Sequence[Record]) -> None:
        """Take in the newest records, oldest first; those that were seen before are passed over.

        The phase before a gap is not counted: how long it took is not known.
        """
        for before, after in itertools.pairwise(records):
            if after.sequence > self._seen and after.sequence == before.sequence + 1:
                took = self._took_s.setdefault(_kind(before), deque(maxlen=TOOK_KEPT))
                took.append((after.time_ns - before.time_ns) / 1e9)
        if records:
            self._seen = max(self._seen, records[-1].sequence)

    def usual_s(self, record: Record) -> float | None:
        """The median of what the phase of `record` took so far; None if it has never ended."""
        took = self._took_s.get(_kind(record))
        return median(took) if took else None


def _kind(record: Record) -> tuple[Phase, str]:
    return record.phase, record.operation.rstrip("0123456789")


# Ranks that wait without a note: those of a plain script that meet over Gloo or NCCL. Such a rank uses no processor time and
# does not wake up, and its stack ends in a function of torch.distributed, or in a backward pass, where
# DistributedDataParallel exchanges without a Python frame. A loop of short steps and pauses uses hardly more time, but
# wakes up in each.

LONG_S = 2.0
"""How long a rank must have been idle before its stack is looked at."""
BUSY = 0.03
"""The share of a core up to which a rank counts as idle."""
TICK_S = 0.011
"""The kernel counts in steps of 10 ms, and a rank that waits looks around now and then."""
WAKES_PER_S = 3.0
"""How often a rank that waits may fall asleep anew: a question for its stack, twice a second, wakes it up."""
SETTLED_S = 1.0
"""How long a rank must have been idle before a backward pass counts as waiting."""


@dataclass
class Idleness:
    """Since when one process has used no processor time, and slept on."""

    _seen: tuple[float, float, int] | None = None
    _since_s: float = field(default=0.0)

    def note(self, now_s: float, processor_s: float, sleeps: int = 0) -> float:
        """How long it has been idle.

        Args:
            now_s: the time.
            processor_s: what it has used since it began.
            sleeps: how often its first thread has fallen asleep since it began.
        """
        if self._seen is None:
            self._seen, self._since_s = (now_s, processor_s, sleeps), now_s
        before_s, used_s, slept = self._seen
        if now_s > before_s:
            works = processor_s - used_s > BUSY * (now_s - before_s) + TICK_S
            if works or sleeps - slept > WAKES_PER_S * (now_s - before_s) + 1:
                self._since_s = now_s
            self._seen = now_s, processor_s, sleeps
        return now_s - self._since_s


def wait_of(stack: Stack | None, idle_s: float, script: str) -> Wait | None:
    """The wait of a rank that has been idle for a while; None if it is not one for other ranks.

    Args:
        stack: its newest one, if it could be read.
        idle_s: for how long it has used next to no processor time.
        script: the user's script.
    """
    if stack is None:
        return None
    what = collective(stack.main)
    if not what and is_in_backward(stack.main) and idle_s >= SETTLED_S:
        what = "the backward pass"
    line = stack.in_script(script)
    place = f" ({line.text.partition(' ')[0]})" if line is not None else ""
    return Wait(idle_s, frozenset(), what + place) if what else None
