"""How many cores a task of srun or mpirun has for its threads, after a binding that nobody asked for is undone."""

from __future__ import annotations

import os
from collections.abc import Mapping

from lockstep.machine.this_machine import nearest
from lockstep.protocol.tasks.mpi import SERVERS, is_bound_unasked
from lockstep.protocol.tasks.task import Task


def undo_binding(variables: Mapping[str, str]) -> None:
    """Use the cores of the mpirun that started this process, where it bound it to one of them by default."""
    server = nearest(SERVERS) if is_bound_unasked(variables) else None
    if server is not None:
        os.sched_setaffinity(0, os.sched_getaffinity(server))


def threads_of(task: Task, variables: Mapping[str, str]) -> int:
    """An equal share of the node's cores that the launcher may use, but no more than this task may.

    Invariant: at least 1, and the same on all tasks of a node that are bound alike.
    """
    return max(1, min(len(os.sched_getaffinity(0)), _together(task, variables) // task.local_size))


def _together(task: Task, variables: Mapping[str, str]) -> int:
    """The cores that all tasks of this node have together."""
    given = variables.get("SLURM_CPUS_ON_NODE", "")
    if task.command == "srun" and given.isdecimal():
        return int(given)
    server = nearest(SERVERS) if task.command == "mpirun" else None
    return len(os.sched_getaffinity(0 if server is None else server))
