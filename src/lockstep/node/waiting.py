"""How a rank waits for others: a pure decision from the CPUs of all ranks and from what waiting costs here.

A rank looks at the other's word for some time, and then sleeps until it is woken. Looking is quick, but takes a CPU (or
from a neighbour on the same core a part of one) from whoever could compute there. So it looks for as long as a wake-up
takes, which is at most twice what a prophet would need; twice as long where that slows nobody down. See docs/design/0032.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.node.wait_costs import WaitCosts

SHORT_SPIN_US = 2.0
"""Where the ranks have more threads than CPUs: what comes at once is still seen without a system call."""
LEAST_SPIN_US, MOST_SPIN_US = 5.0, 50.0
"""Elsewhere."""
SLOWED = 1.1
"""From here on a spinning neighbour counts as one that takes a part of the core away."""
YIELDS = 4
UNKNOWN = -1
"""In the place of the first CPU of a rank that does not say where it may run."""


@dataclass(frozen=True)
class Room:
    """Where a rank may run, and with how many threads it computes."""

    cpus: frozenset[int]
    threads: int


@dataclass(frozen=True)
class Manner:
    """How a rank waits: look this long, then offer the CPU this often, then sleep."""

    spin_us: float
    yields: int
    is_crowded: bool
    """Whether the CPU is always offered; else only to a rank that was last seen on it."""
    why: str


def manner_of_waiting(rooms: Sequence[Room], quota: float, costs: WaitCosts) -> Manner:
    """How the ranks in these rooms wait.

    Args:
        rooms: of all ranks of this machine, as far as they are known.
        quota: CPUs' worth of time that the control groups of this process allow; infinity without a limit.
        costs: within limits.
    """
    threads, cpus = sum(room.threads for room in rooms), len(_together(rooms))
    if is_crowded(rooms, quota):
        place = f"{cpus} CPU{'s' if cpus != 1 else ''}" if cpus <= quota else f"a quota of {quota:g} CPUs"
        return Manner(SHORT_SPIN_US, YIELDS, True, f"the ranks have {threads} threads on {place}")
    is_free = costs.slowed_by_spinning < SLOWED
    spin_us = min(max(costs.wake_us * (2 if is_free else 1), LEAST_SPIN_US), MOST_SPIN_US)
    why = f"a wake-up takes {costs.wake_us:.0f} µs, and work takes {costs.slowed_by_spinning:.2f} times as long beside a CPU that spins"
    return Manner(spin_us, YIELDS, False, why)


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
