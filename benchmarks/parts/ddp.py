"""A DDP loop over our backend instead of Gloo (C5): how much of what DDP costs above no exchange is gone."""

from __future__ import annotations

from benchmarks.cases import GLOO
from benchmarks.rank_program import measure_in_ranks
from benchmarks.summary import Aim, Line, best, compare, compare_removed
from benchmarks.workloads import WORKLOADS

OURS, LIMIT, ALONE = "lockstep", "no exchange", "a group of one rank"
GOAL = 0.85


def measure_ddp(workload: str, rounds: int) -> list[Line]:
    """One workload on two ranks: the best bucket cap of each side. Exits when their first gradients differ.

    The second line is what could be gone: DDP over a group of one rank exchanges nothing, but does all of its own work.
    """
    options = ["--workload", workload, "--rounds", rounds * WORKLOADS[workload].rounds_factor]
    times = measure_in_ranks("ddp", 2, options)["times_ns"]
    limit, alone = (LIMIT, times.pop(LIMIT)), (ALONE, times.pop(ALONE))
    ours, gloo = (best({name: of for name, of in times.items() if name.startswith(label)}) for label in (OURS, GLOO))
    pair = (ours, times[ours]), (gloo, times[gloo])
    what = f"DDP: {WORKLOADS[workload].what}"
    return [
        compare_removed(Aim("C5", f"{what}, exchange gone", GOAL), *pair, limit),
        compare_removed(Aim("C5", f"{what}, without DDP's own part"), alone, pair[1], limit),
        compare(Aim("C5", f"{what}, whole step", 1.0), *pair, limit),
    ]
