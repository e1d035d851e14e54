"""How a rank waits for others: a pure decision from the CPUs of all ranks.

A rank looks at the other's word for some time, and then sleeps until it is woken. Looking is quick, but takes a CPU from
whoever could compute there. So where each thread has a CPU it looks for as long as two wake-ups take. See docs/design/0032.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

SHORT_SPIN_US = 2.0
"""Where the ranks have more threads than CPUs: what comes at once is still seen without a system call."""
SPIN_US = 40.0
"""Elsewhere: a wake-up takes 13 to 25 µs on the machines that were measured."""
YIELDS = 4
"""How often a rank offers its CPU before it sleeps: always where ranks are crowded, else to one that was last seen on it."""
UNKNOWN = -1
"""In the place of the first CPU of a rank that does not say where it may run."""


@dataclass(frozen=True)
class Room:
    """Where a rank may run, and with how many threads it computes."""

    cpus: frozenset[int]
    threads: int


def is_crowded(rooms: Sequence[Room], quota: float) -> bool:
    """Whether some threads of these ranks must share a CPU, or time of the quota."""
    if sum(room.threads for room in rooms) > min(len(_together(rooms)), quota):
        return True
    threads, beginning = Counter[frozenset[int]](), defaultdict[int, list[frozenset[int]]](list)
    for room in rooms:
        threads[room.cpus] += room.threads
    for cpus in threads:
        beginning[min(cpus, default=UNKNOWN)].append(cpus)
    # What lies within a place begins at one of its CPUs: with a CPU for each rank not all are compared with all.
    return any(
        sum(threads[cpus] for first in (UNKNOWN, *place) for cpus in beginning.get(first, ()) if cpus <= place)
        > len(place)
        for place in threads
    )


def _together(rooms: Sequence[Room]) -> frozenset[int]:
    return frozenset().union(*{room.cpus for room in rooms})
