"""How large the buckets of a reduction should be, over the transport of the run."""

from __future__ import annotations

from benchmarks.rank_program import measure_in_ranks
from benchmarks.summary import Aim, Line, best, compare
from benchmarks.workloads import WORKLOADS
from lockstep.strategy.replica.slots import BUCKET_BYTES

SIZES_KIB = (256, 1024, 4096, 16384, 1 << 20)
OURS_KIB = BUCKET_BYTES >> 10


def bucket_name(kib: int) -> str:
    """What a side is called; the largest size holds every model's gradients."""
    return "one bucket" if kib >= 1 << 20 else f"{kib} KiB"


def measure_buckets(workload: str, rounds: int) -> list[Line]:
    """The reduction of one model's gradients on two ranks: our bucket size beside the best of the others."""
    times = measure_in_ranks("buckets", 2, ["--workload", workload, "--rounds", rounds])["times_ns"]
    ours = times.pop(bucket_name(OURS_KIB))
    other = best(times)
    aim = Aim("size", f"buckets: {WORKLOADS[workload].what}")
    return [compare(aim, (bucket_name(OURS_KIB), ours), (other, times[other]))]
