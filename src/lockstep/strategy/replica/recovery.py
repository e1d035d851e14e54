"""How a pass that loses a rank in the middle of its sums goes on.

Sums are written over what they are made of. A death leaves elements that have the result on some rank or on all, and
elements of which all partial sums are as they were. So the exchange that is made again hands around what is summed, and
sums the rest apart, with the rank that took the dead one's place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from lockstep.strategy.replica.arena import Segment
from lockstep.strategy.replica.rows import around


@dataclass(frozen=True)
class Recovery:
    """What one rank tells the others before the sums."""

    over: bool = False
    """Whether it could tell after a death how far sums over their partials have come."""
    summed: Sequence[Segment] = ()
    """What an earlier exchange has left summed here."""

    def encode(self) -> list[Any]:
        """Encode as JSON values."""
        return [self.over, [astuple(one) for one in self.summed] if self.summed else []]


ABLE, UNABLE = Recovery(over=True), Recovery()


@dataclass(frozen=True)
class Summed:
    """Elements whose result a rank has."""

    holder: int
    segment: Segment


@dataclass(frozen=True)
class AgreedRecovery:
    """What follows from what all ranks have told; the same on every rank."""

    over: bool = False
    """Whether sums are written over their partials."""
    summed: Sequence[Summed] = ()
    """What is summed already, in order of flat and offset."""


OVER, APART = AgreedRecovery(over=True), AgreedRecovery()


def agreed_recovery(told: Sequence[Sequence[Any]]) -> AgreedRecovery:
    """What follows from each rank's encoded `Recovery`. Few calls where nobody died, as after almost every pass."""
    over, is_summed = True, False
    for is_able, summed in told:
        over, is_summed = over and is_able, is_summed or len(summed) > 0
    if not is_summed:
        return OVER if over else APART
    return AgreedRecovery(over, holders([[Segment(*one) for one in summed] for _, summed in told]))


def joined(segments: Iterable[Segment]) -> list[Segment]:
    """The same elements in as few segments as possible, in order of flat and offset. None of them overlap."""
    found: list[Segment] = []
    for one in sorted(segments, key=_place):
        if found and found[-1].flat == one.flat and found[-1].offset + found[-1].size == one.offset:
            found[-1] = Segment(one.flat, found[-1].offset, found[-1].size + one.size)
        else:
            found.append(one)
    return found


def holders(told: Sequence[Sequence[Segment]]) -> list[Summed]:
    """The first rank that has the result, for every element of which any rank has it; in order of flat and offset.

    Args:
        told: what each rank has.
    """
    found: list[Summed] = []
    for rank, segments in enumerate(told):
        for one in segments:
            known = sorted((other.segment for other in found if other.segment.flat == one.flat), key=_place)
            found += [
                Summed(rank, Segment(one.flat, start, end - start))
                for start, end in around(one.offset, one.offset + one.size, known)
            ]
    return sorted(found, key=lambda one: _place(one.segment))


def _place(segment: Segment) -> tuple[int, int]:
    return segment.flat, segment.offset
