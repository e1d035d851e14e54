"""`--skip-steps 1234:1236`: steps whose samples are passed over, by the run's count. Pure.

A run remembers the ranges in its states. So a start knows which steps before it were passed over, and which are still to be.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from samebits.errors import UsageError
from samebits.machine.visible import visible

OPTION = "--skip-steps"
Range = tuple[int, int]
"""The first step and the last one."""
MOST_RANGES = 1000
_RANGE = re.compile(r"(\d{1,15}):(\d{1,15})")


@dataclass(frozen=True)
class SkippedSteps:
    """Steps by their numbers, counted from the beginning of the run."""

    ranges: tuple[Range, ...] = ()
    """In order; no two touch."""

    @classmethod
    def of(cls, ranges: Iterable[Range]) -> SkippedSteps:
        """Steps that are in some of these ranges, which may overlap."""
        found: list[Range] = []
        for first, last in sorted(ranges):
            if found and first <= found[-1][1] + 1:
                found[-1] = found[-1][0], max(found[-1][1], last)
            else:
                found.append((first, last))
        return cls(tuple(found))

    @classmethod
    def parse(cls, text: str | None) -> SkippedSteps:
        """Read `1234:1236,1300:1300`; None: no steps.

        Raises:
            UsageError: for anything else.
        """
        ranges = []
        for word in (text or "").split(",") if text is not None else []:
            found = _RANGE.fullmatch(word)
            if found is None or not found[0].isascii():
                raise UsageError(
                    f"{OPTION} {visible(repr(text))} cannot be read as a range of steps.",
                    f"Write the first and the last one, both included: {OPTION} 1234:1236, or several with commas.",
                )
            first, last = int(found[1]), int(found[2])
            if not 1 <= first <= last:
                raise UsageError(
                    f"{OPTION} {word} has no step: "
                    + (f"{first} is behind {last}." if first > last else "steps count from 1."),
                    "Write the first step in front of the last one.",
                )
            ranges.append((first, last))
        if len(ranges) > MOST_RANGES:
            raise UsageError(f"{OPTION} has more than {MOST_RANGES} ranges.", "Give fewer, longer ones.")
        return cls.of(ranges)

    @classmethod
    def read(cls, record: Any) -> SkippedSteps:
        """What a state keeps. Raises ValueError for what samebits does not write."""
        is_ours = isinstance(record, (list, tuple)) and all(
            isinstance(one, (list, tuple)) and [*map(type, one)] == [int, int] and 1 <= one[0] <= one[1]
            for one in record
        )
        if not is_ours:
            raise ValueError(record)
        return cls.of((first, last) for first, last in record)

    def __contains__(self, step: int) -> bool:
        return any(first <= step <= last for first, last in self.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __str__(self) -> str:
        return ",".join(f"{first}:{last}" for first, last in self.ranges)

    @property
    def text(self) -> str:
        """For people: `steps 1234 to 1236 and step 1300`."""
        words = [f"steps {first} to {last}" if first < last else f"step {first}" for first, last in self.ranges]
        return " and ".join(words)

    def between(self, first: int, last: int) -> list[int]:
        """Those from `first` to `last`, in order."""
        found = [range(max(first, low), min(last, high) + 1) for low, high in self.ranges]
        return [step for steps in found for step in steps]

    def until(self, step: int) -> SkippedSteps:
        """Those up to `step`."""
        return SkippedSteps(tuple((first, min(last, step)) for first, last in self.ranges if first <= step))

    def after(self, step: int) -> SkippedSteps:
        """Those behind `step`."""
        return SkippedSteps(tuple((max(first, step + 1), last) for first, last in self.ranges if last > step))

    def without(self, other: SkippedSteps) -> SkippedSteps:
        """Those that are not among the others."""
        left = [*self.ranges]
        for low, high in other.ranges:
            parts = [((first, min(last, low - 1)), (max(first, high + 1), last)) for first, last in left]
            left = [part for pair in parts for part in pair if part[0] <= part[1]]
        return SkippedSteps.of(left)

    def __or__(self, other: SkippedSteps) -> SkippedSteps:
        return SkippedSteps.of((*self.ranges, *other.ranges))


NONE = SkippedSteps()


def of_resumed(given: SkippedSteps, saved: SkippedSteps, step: int, *, is_branch: bool) -> SkippedSteps:
    """What holds for a start that resumes after `step`.

    A range that a run has begun with it keeps until its steps are over: a command that leaves it out would train on them.

    Args:
        given: by the command line.
        saved: in the state.
        step: after which that was saved.
        is_branch: whether it is the state of another run, whose steps to come are none of ours.

    Raises:
        UsageError: when `given` leaves out what the run has still to pass over, or has what the run has made already.
    """
    behind = saved.until(step)
    ahead = SkippedSteps() if is_branch else saved.after(step)
    if lost := ahead.without(given):
        raise UsageError(
            f"The run passes over {lost.text}, as it was started, and this command does not say so.",
            f"Add {OPTION} {given | ahead}; for a run that trains on them, begin a branch: --from RUN@STEP.",
        )
    if made := given.until(step).without(behind):
        raise UsageError(
            f"{OPTION} names {made.text}, and the run resumes after step {step}, so it has made {_them(made)} already.",
            "Leave out what is behind, or branch from a step before it: --from RUN@STEP.",
        )
    return behind | given


def _them(steps: SkippedSteps) -> str:
    return "it" if sum(last - first + 1 for first, last in steps.ranges) == 1 else "them"
