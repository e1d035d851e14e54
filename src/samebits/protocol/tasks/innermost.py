"""Which launcher started this process: the nearest one, where one runs inside the other."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace

from samebits.errors import UsageError
from samebits.protocol.tasks import mpi, slurm
from samebits.protocol.tasks.slurm import hosts
from samebits.protocol.tasks.task import Task


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


def check_around(task: Task, variables: Mapping[str, str]) -> None:
    """Raise `UsageError` where this rank is not one of `task`'s run, though the person believes so.

    Args:
        task: by the variables of srun or mpirun in this process, or in the launcher above it.
        variables: its environment.
    """
    if "RANK" not in variables:
        return
    if "TORCHELASTIC_RUN_ID" in variables:
        _check_torchrun(task, variables)
    elif variables.get("WORLD_SIZE") == str(task.size) and variables["RANK"] != str(task.rank):
        raise UsageError(
            f"RANK is {variables['RANK']}, but {task.command} started this as task {task.rank} of {task.size}.",
            f"Unset RANK and WORLD_SIZE: {task.command}'s own variables are read.",
        )


def _check_torchrun(task: Task, variables: Mapping[str, str]) -> None:
    """Raise `UsageError` where torchrun was started several times but knows of one node only.

    A torchrun that knows no other nodes names its run with a UUID. One that does may be alone for a while
    (--nnodes 1:4), which is right.
    """
    text = variables.get("GROUP_WORLD_SIZE", "1")
    agents = int(text) if text.isdecimal() else 1
    # Fewer agents than tasks on this node, or a run that torchrun named itself: each of them is on its own.
    if agents < task.local_size or (agents == 1 and _is_uuid(variables["TORCHELASTIC_RUN_ID"])):
        raise UsageError(
            f"{task.command} started torchrun {task.size} times {task.where}, and each of them started ranks of its own.",
            f"Leave one of them out: `{task.command} -n {task.size} python SCRIPT`, or torchrun alone.",
        )


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True
