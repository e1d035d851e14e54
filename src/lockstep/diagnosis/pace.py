"""What each phase of a rank takes as a rule, learned from its journal."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from statistics import median

from lockstep.journal.record import Phase, Record

KEPT = 33
"""Durations of each phase."""


class Pace:
    """One rank's. A phase is told apart by its operation, without the numbers in it: `lane 3` is as `lane 0`."""

    def __init__(self) -> None:
        self._took_s: dict[tuple[Phase, str], deque[float]] = {}
        self._seen = 0

    def learn(self, records: Sequence[Record]) -> None:
        """Take in the newest records, oldest first; those that were seen before are passed over.

        The phase before a gap is not counted: how long it took is not known.
        """
        for before, after in itertools.pairwise(records):
            if after.sequence > self._seen and after.sequence == before.sequence + 1:
                took = self._took_s.setdefault(_kind(before), deque(maxlen=KEPT))
                took.append((after.time_ns - before.time_ns) / 1e9)
        if records:
            self._seen = max(self._seen, records[-1].sequence)

    def usual_s(self, record: Record) -> float | None:
        """The median of what the phase of `record` took so far; None if it has never ended."""
        took = self._took_s.get(_kind(record))
        return median(took) if took else None


def _kind(record: Record) -> tuple[Phase, str]:
    return record.phase, record.operation.rstrip("0123456789")
