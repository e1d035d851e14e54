"""The transport's numbers for one group: what its ranks know of the machine, as the compiled part takes it.

Rank 0 measures, or reads what was measured before, and tells the others at their meeting. None of the numbers changes a
bit. How a rank waits is each rank's own; the sizes of pieces are those of rank 0, which the compiled part sees to: rank 0
writes them where all read them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from lockstep.machine.caches import caches
from lockstep.machine.cores import cpu_quota
from lockstep.node.kept_numbers import cache_folder
from lockstep.node.native import compiled
from lockstep.node.pieces import Sizes, sizes_for
from lockstep.node.process import RankProcess
from lockstep.node.wait_costs import WaitCosts, find_costs, own_cpus
from lockstep.node.waiting import Room, manner_of_waiting

Told = dict[str, float]
"""Costs on their way from rank 0 to the others."""


def costs_to_tell(rank: int, world_size: int) -> Told:
    """What rank 0 tells the others; nothing on any other rank, and where nobody waits."""
    return asdict(find_costs(own_cpus(), cache_folder(os.environ)).costs) if rank == 0 and world_size > 1 else {}


def tuning_of(ranks: Iterable[RankProcess], here: RankProcess, told: Told) -> compiled.Tuning:
    """The numbers for a group.

    Args:
        ranks: all that are known, of this group and of others: they compute on the same CPUs.
        here: this one.
        told: by rank 0 of the group.
    """
    rooms = [Room(_as_set(rank.cpus), rank.threads) for rank in ranks if rank.boot == here.boot]
    manner = manner_of_waiting(rooms, cpu_quota(), WaitCosts(**told).within_limits())
    sizes = _sizes(min(own_cpus()))
    return compiled.Tuning(
        spin_us=manner.spin_us,
        yields=manner.yields,
        is_crowded=manner.is_crowded,
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


def account() -> dict[str, Any]:
    """For `lockstep doctor`: how a rank for each CPU would wait, and two on one CPU; where the costs come from; the sizes of
    pieces, and the caches that they follow from.
    """
    finding, cpus = find_costs(own_cpus(), cache_folder(os.environ)), own_cpus()
    shared = [Room(cpus, len(cpus))] * 2
    rooms = {"own": [Room(cpus, 1)] * len(cpus) if len(cpus) > 1 else shared, "shared": shared}
    manners = {name: asdict(manner_of_waiting(of, cpu_quota(), finding.costs)) for name, of in rooms.items()}
    told = caches(min(cpus))
    return asdict(finding) | manners | {"sizes": asdict(sizes_for(told)), "caches": [told.get(2, 0), told.get(3, 0)]}
