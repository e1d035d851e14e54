"""Which launcher started this process: the nearest one, where one runs inside the other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lockstep.protocol.tasks import mpi, slurm
from lockstep.protocol.tasks.hostlist import hosts
from lockstep.protocol.tasks.task import Task


def innermost(variables: Mapping[str, str]) -> Task | None:
    """The task that this process is; None if nobody started several.

    mpirun inside a SLURM job is nearer than srun, which starts mpirun's own servers there; it then uses the job's nodes.
    """
    inner, outer = mpi.find(variables), slurm.find(variables)
    if inner is None or inner.size == 1:
        return outer if outer is not None and outer.size > 1 else None
    if inner.nodes != 1:
        inner = replace(inner, hosts=_allocated(variables, inner))
    return inner


def _allocated(variables: Mapping[str, str], task: Task) -> tuple[str, ...]:
    """The hosts of the SLURM job that mpirun runs in, if it uses all of them; mpirun fills them in this order."""
    try:
        names = hosts(variables["SLURM_JOB_NODELIST"])
    except (KeyError, ValueError):
        return ()
    return names if len(names) == task.nodes or (task.local_size == 1 and len(names) == task.size) else ()
