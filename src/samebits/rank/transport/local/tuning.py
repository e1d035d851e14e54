"""The transport's numbers for one group: what its ranks know of the machine, as the compiled part takes it.

None of them changes a bit. How a rank waits is each rank's own; the sizes of pieces are those of rank 0, which writes them
where all read them.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from samebits.machine.cores import caches, cpu_quota
from samebits.rank.transport.local.native import compiled
from samebits.rank.transport.local.process import RankProcess

LEAST_SWAPPED, MOST_SWAPPED = 128 << 10, 256 << 10
LEAST_STREAMED, MOST_STREAMED = 4 << 20, 32 << 20
"""Cloud machines report third caches that they share with other tenants; more than this was never tried."""


@dataclass(frozen=True)
class Sizes:
    """In bytes. The defaults are used where the machine does not report its caches."""

    swapped: int = LEAST_SWAPPED
    """Of a piece that two ranks exchange. There are four blocks for such pieces."""
    streamed_from: int = MOST_STREAMED
    """Of arrays together: results of operations on so many bytes are written past the caches."""


def sizes_for(caches: Mapping[int, int]) -> Sizes:
    """The sizes for a CPU with these caches (bytes by level): four pieces fill the second one, and the third one is passed by
    what does not fit into it.
    """
    usual = Sizes()
    return Sizes(
        min(max(caches.get(2, 0) // 4, LEAST_SWAPPED), MOST_SWAPPED),
        min(max(caches.get(3, usual.streamed_from), LEAST_STREAMED), MOST_STREAMED),
    )


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


def tuning_of(ranks: Iterable[RankProcess], here: RankProcess) -> compiled.Tuning:
    """The numbers for a group.

    Args:
        ranks: all that are known, of this group and of others: they compute on the same CPUs.
    """
    rooms = [Room(_as_set(rank.cpus), rank.threads) for rank in ranks if rank.boot == here.boot]
    crowded = is_crowded(rooms, cpu_quota())
    sizes = _sizes(min(os.sched_getaffinity(0)))
    return compiled.Tuning(
        spin_us=SHORT_SPIN_US if crowded else SPIN_US,
        yields=YIELDS,
        is_crowded=crowded,
        swapped_bytes=sizes.swapped,
        streamed_from_bytes=sizes.streamed_from,
    )


@lru_cache(512)
def _as_set(cpus: tuple[int, ...]) -> frozenset[int]:
    """The same one for equal CPUs: each rank compares the CPUs of all when a group is made."""
    return frozenset(cpus)


@lru_cache
def _sizes(cpu: int) -> Sizes:
    """A CPU's caches do not change, and reading them from the kernel takes half a millisecond."""
    return sizes_for(caches(cpu))
