"""Which parts of a run are made again: its segments, between states, and from where each is reached. Pure.

Segments that follow each other are made in one go. One whose state cannot be begun with is reached from an earlier one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

from samebits.errors import UsageError


@dataclass(frozen=True)
class Segment:
    """The steps behind `after`, up to `last`."""

    after: int
    last: int

    @property
    def num_steps(self) -> int:
        return self.last - self.after


@dataclass(frozen=True)
class Stretch:
    """Segments that are made in one go, from a state."""

    begins_after: int
    """Of the state; 0: the beginning."""
    after: int
    last: int

    @property
    def extra(self) -> int:
        """Steps that are made to get there."""
        return self.after - self.begins_after


def segments_of(first: int, last: int, states: Collection[int]) -> list[Segment]:
    """Those between the steps `first` and `last`, of a run with states behind these steps."""
    bounds = [first - 1, *sorted(step for step in states if first <= step < last), last]
    return [Segment(after, end) for after, end in pairwise(bounds) if end > after]


def chosen(segments: Sequence[Segment], number: int, random: Random) -> list[Segment]:
    """The first and, drawn, as many as are wanted of the others, in order."""
    if number >= len(segments):
        return list(segments)
    drawn = random.sample(range(1, len(segments)), number - 1)
    return [segments[place] for place in sorted((0, *drawn))]


def with_steps(segments: Sequence[Segment], first: int, last: int) -> list[Segment]:
    """Those with a step of `first` to `last`, cut to these at the end.

    Raises:
        UsageError: when the run has none of these steps.
    """
    found = [Segment(one.after, min(one.last, last)) for one in segments if one.last >= first and one.after < last]
    if not found:
        has = f"{segments[0].after + 1} to {segments[-1].last}" if segments else "none"
        raise UsageError(
            f"--steps {first}:{last} names steps that are not in the record, which has {has}.",
            "Name steps that it has.",
        )
    return found


def stretches_of(segments: Sequence[Segment], begins: Collection[int]) -> list[Stretch]:
    """What is made in one go; `begins`: steps behind which a run can begin, 0 for the beginning.

    Raises:
        UsageError: when a segment is reached from none of them.
    """
    found: list[Stretch] = []
    for one in segments:
        start = max((step for step in begins if step <= one.after), default=None)
        if found and (found[-1].last == one.after or (start is not None and start <= found[-1].last <= one.after)):
            found[-1] = Stretch(found[-1].begins_after, found[-1].after, one.last)
        elif start is None:
            raise UsageError(
                f"No state from which a run can begin lies before step {one.after + 1}.",
                "Put the states beside the record, or name later steps: --steps A:B.",
            )
        else:
            found.append(Stretch(start, one.after, one.last))
    return found


def share_missed(num_checked: int, num_segments: int) -> float:
    """How probable it is that one forged segment is not among those that were checked.

    The first always is, and whoever forges knows that: it is one of the others.
    """
    return (num_segments - num_checked) / (num_segments - 1) if num_segments > 1 else 0.0
