"""The transport's numbers for one group: what its ranks know of the machine, as the compiled part takes it.

None of them changes a bit. How a rank waits is each rank's own; the sizes of pieces are those of rank 0, which writes them
where all read them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import lru_cache

from lockstep.machine.cores import caches, cpu_quota
from lockstep.rank.transport.local.native import compiled
from lockstep.rank.transport.local.pieces import Sizes, sizes_for
from lockstep.rank.transport.local.process import RankProcess
from lockstep.rank.transport.local.waiting import SHORT_SPIN_US, SPIN_US, YIELDS, Room, is_crowded


def tuning_of(ranks: Iterable[RankProcess], here: RankProcess) -> compiled.Tuning:
    """The numbers for a group.

    Args:
        ranks: all that are known, of this group and of others: they compute on the same CPUs.
        here: this one.
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
    """A CPU's caches stay as they are, and reading what the kernel tells of them takes half a millisecond."""
    return sizes_for(caches(cpu))
