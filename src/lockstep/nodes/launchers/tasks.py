"""srun and mpirun: one `lockstep run` per node, as its only task there."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.errors import UsageError
from lockstep.handover.tasks.innermost import innermost
from lockstep.handover.tasks.meeting import is_loopback
from lockstep.handover.tasks.task import Task, port_for
from lockstep.nodes.address import joined, port_number
from lockstep.nodes.place import Facts


def find(variables: Mapping[str, str], wanted: int | None, script: str) -> Facts | None:
    """What they say; None if they started only this process.

    Args:
        variables: the environment.
        wanted: the most nodes that the command line asks for; None if it does not say.
        script: SCRIPT as given, for corrected commands.

    Raises:
        UsageError: when several tasks are on one node and the command line does not want that.
    """
    task = innermost(variables)
    if task is None or task.size == 1 or wanted == 1:
        return None
    if task.is_one_per_node:
        nodes = (task.size, task.size)
        return Facts(task.launcher, nodes, task.node, _endpoint(task, variables), task.job, task.hosts)
    if wanted is not None and wanted == task.size:  # one machine that stands for several
        host = "127.0.0.1" if task.local_size == task.size else ""
        endpoint = joined(host, port_for(task.job)) if host else _endpoint(task, variables)
        return Facts(task.launcher, (task.size, task.size), task.rank, endpoint, task.job)
    raise UsageError(
        f"{task.command} started {task.size} tasks {task.where}, and each of them would start ranks of its own.",
        corrected(task, script),
    )


def corrected(task: Task, script: str) -> str:
    """The commands that start one `lockstep run` per node, or one task per rank."""
    own = f"lockstep run -n {task.local_size} {script}"
    if task.local_size == task.size:
        return f"Start it without {task.command}: {own}."
    if task.command == "srun":
        one = f"srun -N {task.nodes} -n {task.nodes} -c {task.local_size} {own}"
        return f"Start one per node: {one}."
    nodes = task.nodes or task.size // task.local_size
    one = f"--map-by ppr:1:node {own}" if task.launcher == "Open MPI" else f"-ppn 1 {own}"
    return f"Start one per node: mpirun -n {nodes} {one}."


def _endpoint(task: Task, variables: Mapping[str, str]) -> str:
    """Where node 0 is: at MASTER_ADDR if it can be meant, else at the first host; empty if nobody knows."""
    named = variables.get("MASTER_ADDR", "")
    host = named if named and not is_loopback(named) else task.hosts[0] if task.hosts else ""
    port = variables.get("MASTER_PORT", "")
    return joined(host, port_number(port, "MASTER_PORT") if port else port_for(task.job)) if host else ""
