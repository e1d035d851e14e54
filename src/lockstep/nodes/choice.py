"""Where this node is: the command line over the innermost launcher, and only what cannot both be true is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lockstep.errors import UsageError
from lockstep.nodes.address import DEFAULT_PORT
from lockstep.nodes.launchers import kubernetes, skypilot, tasks, torchrun
from lockstep.nodes.place import Facts, NodePlace, Told

ONE = (1, 1)


def choose_place(told: Told, variables: Mapping[str, str], script: str = "SCRIPT") -> NodePlace:
    """This node's place; of what is said about several nodes, nothing is looked at where there is one.

    Args:
        told: the options of the command line.
        variables: the environment.
        script: SCRIPT as given, for corrected commands.

    Raises:
        UsageError: with the corrected command, where options are impossible, or contradict the launcher.
    """
    wanted, defaults = told.nodes(), torchrun.told(variables)
    if wanted == ONE:
        return _alone(told)
    task = tasks.find(variables, wanted[1] if wanted else None, script)
    kube, sky = kubernetes.find(variables), skypilot.find(variables)
    counts = (wanted, task and task.nodes, defaults.nodes(), kube and kube.nodes, sky and sky.nodes)
    if next(filter(None, counts), ONE) == ONE:
        return _alone(told)
    said = told.facts()
    launchers = [one for one in (task, defaults.facts(torchrun.NAME), kube, sky) if one is not None]
    for one in (task, sky, kube):
        if one is not None:
            _check_both(said, one, script)
    place = _over(said, launchers)
    _check_reachable(place, script)
    times = {**defaults.times(), **told.times()}
    local = told.local_addr or defaults.local_addr or ""
    ranks = variables.get("PET_NPROC_PER_NODE") or None
    return replace(place, local=local, ranks=ranks, join_s=times.get("join_s"), last_call_s=times.get("last_call_s"))


def _alone(told: Told) -> NodePlace:
    """The only node.

    Raises:
        UsageError: where the command line counts nodes.
    """
    if (told.node_rank or "0").strip() != "0":
        raise UsageError(
            f"--node-rank {told.node_rank} is for several nodes, and there is one.",
            "Add --nnodes with their number, or leave --node-rank out.",
        )
    return NodePlace()


def _over(said: Facts, launchers: list[Facts]) -> NodePlace:
    """Put what is said over what the counting launcher says, and this over the others; the first fact wins."""
    counting = next(one for one in (said, *launchers) if one.nodes)
    order = (said, counting, *launchers)
    nodes = counting.nodes or ONE
    number = next((one.number for one in order if one.number is not None), None)
    endpoint = next((one.endpoint for one in order if one.endpoint), "")
    launcher = next((one.launcher for one in order if one.launcher and (one.nodes or one.number is not None)), "")
    if number is None and not endpoint:
        number = 0
    job = next((one.job for one in order if one.job), "")
    hosts = next((one.hosts for one in order if len(one.hosts) == nodes[1]), ())
    return NodePlace(*nodes, number, endpoint, job, launcher=launcher, hosts=hosts)


def _check_both(said: Facts, one: Facts, script: str) -> None:
    """Raise `UsageError` where the command line contradicts who started this process, and on how many nodes."""
    own = f"lockstep run {script}"
    if said.nodes and one.nodes and not said.nodes[0] <= one.nodes[1] <= said.nodes[1]:
        least, most = said.nodes
        asked = f"allows {most}" if one.nodes[1] > most else f"waits for {least}"
        raise UsageError(
            f"{one.launcher} started this on {one.nodes[1]} nodes, but --nnodes {asked}.",
            f"Leave --nnodes out: {own}.",
        )
    if one.nodes and said.number is not None and one.number is not None and said.number != one.number:
        raise UsageError(
            f"--node-rank says {said.number}, but {one.launcher} says that this is node {one.number}.",
            f"Leave --node-rank out: {own}.",
        )


def _check_reachable(place: NodePlace, script: str) -> None:
    """Raise `UsageError` where this node cannot know where node 0 is, or the others cannot."""
    if place.endpoint:
        return
    if place.launcher:
        raise UsageError(
            f"{place.launcher} does not say where node 0 is.",
            f"Add its host: lockstep run --rdzv-endpoint HOST:{DEFAULT_PORT} {script}.",
        )
    if place.number:
        raise UsageError(
            f"Nothing says where node 0 is, and this is node {place.number}.",
            f"Use the line that node 0 prints, or add --rdzv-endpoint HOST:{DEFAULT_PORT} with node 0's host.",
        )
