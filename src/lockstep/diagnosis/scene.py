"""What can be seen of one rank at one moment, from outside."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from lockstep.diagnosis.movement import Sample
from lockstep.journal.record import Phase


class Life(Enum):
    """The state of a rank's process."""

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
    """One rank."""

    rank: int
    life: Life
    doing: Doing | None
    """None when the script keeps no journal."""
    wait: Wait | None
    samples: tuple[Sample, ...] = ()
    """Of a rank that is suspected: what it and its loader workers did in the last seconds, oldest first."""
    told_moves: bool | None = None
    """Of a rank on another node: whether it moves, as that node told; None if it did not."""
