"""What SLURM says to the tasks of a step (of one `srun`).

Only variables of the step count: a batch script and an interactive shell have the job's too, but are one process. Never
SLURM_LAUNCH_NODE_IPADDR: that is where srun runs, often a login node.
"""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.protocol.tasks.hostlist import counts, hosts
from lockstep.protocol.tasks.task import Task


def find(variables: Mapping[str, str]) -> Task | None:
    """The task of a step that this process is; None outside of a step, in its shell, and where variables are missing."""
    if "SLURM_PTY_PORT" in variables:  # `srun --pty bash`: the other tasks, if any, have no terminal and are gone
        return None
    try:
        size, rank = int(variables["SLURM_STEP_NUM_TASKS"]), int(variables["SLURM_PROCID"])
        names = hosts(variables["SLURM_STEP_NODELIST"])
        tasks = counts(variables["SLURM_STEP_TASKS_PER_NODE"])
        node, local_rank = int(variables["SLURM_NODEID"]), int(variables["SLURM_LOCALID"])
    except (KeyError, ValueError):
        return None
    if not (0 <= rank < size == sum(tasks) and len(names) == len(tasks) and 0 <= node < len(names)):
        return None
    if not 0 <= local_rank < tasks[node]:
        return None
    job = f"{variables.get('SLURM_JOB_ID', '')}.{variables.get('SLURM_STEP_ID', '')}"
    return Task("SLURM", "srun", rank, size, local_rank, tasks[node], len(names), node, names, job)
