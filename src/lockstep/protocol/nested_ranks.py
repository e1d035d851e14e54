"""Where ranks would start ranks of their own: what is refused, with its sentence. Pure, from the environment."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.errors import UsageError
from lockstep.protocol.environment import OWN
from lockstep.protocol.tasks.innermost import innermost


def check_spawn(variables: Mapping[str, str]) -> None:
    """Raise `UsageError` where each of several processes would start the ranks of `lockstep.spawn`.

    Args:
        variables: of the process that calls it.
    """
    task = innermost(variables)
    if OWN in variables:
        rank, num_nodes = int(variables.get("RANK", "0")), int(variables.get("GROUP_WORLD_SIZE", "1"))
        if num_nodes > 1:
            raise refusal("lockstep.spawn", rank, num_nodes)
        raise UsageError(
            f"lockstep.spawn was called in rank {rank} of a run, so each rank would start ranks of its own.",
            "Start this script with `python`, not with `lockstep run`; or call the function without spawn.",
        )
    if task is not None:
        raise UsageError(
            f"{task.command} started {task.size} tasks {task.where}, and each of them would start ranks of its own with "
            "lockstep.spawn.",
            f"Call the function without spawn: `{task.command} -n {task.size} python SCRIPT` makes each task a rank.",
        )


def refusal(call: str, rank: int, num_nodes: int) -> UsageError:
    """The error where a rank of a run on several nodes starts ranks of its own with `call`."""
    return UsageError(
        f"{call} was called in rank {rank} of a run on {num_nodes} nodes, so each rank would start ranks of its own, "
        "which know nothing of the other nodes.",
        "Call the function without spawn: `lockstep run -n N` starts N ranks on each node, and each runs the script.",
    )
