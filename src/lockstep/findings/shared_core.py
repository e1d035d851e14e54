"""Ranks that are all bound to one core."""

from __future__ import annotations

from lockstep.findings.finding import Finding

FINDING = Finding(
    name="shared-core",
    title="All ranks share one core",
    seen="The kernel says that all ranks may run on the same single core only, although there are more.",
    example="""\
note      the 2 ranks may use core 0 only, of 2, and take turns on it
""",
    why=(
        "`OMP_PROC_BIND`, `GOMP_CPU_AFFINITY`, `KMP_AFFINITY`, `taskset`, `mpirun` or a batch system bound the "
        "first process, and the ranks have inherited that; or the script calls `os.sched_setaffinity` with the "
        "same core on each rank."
    ),
    what_to_do=(
        (
            "Remove what binds: unset `OMP_PROC_BIND`, `GOMP_CPU_AFFINITY` and `KMP_AFFINITY`; start `mpirun` with "
            "`--bind-to none`."
        ),
        "In a batch job ask for as many cores as ranks (`--cpus-per-task`).",
    ),
)
