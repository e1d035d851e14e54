"""Where this node is among the nodes of a run: the command line over the innermost launcher; only what cannot both be true is refused.

What each source knows (`Facts`, `Options`) is read by functions at the end, and `choose_place` makes a `NodePlace` of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from samebits.errors import UsageError
from samebits.launcher.nodes.address import DEFAULT_PORT, joined, port_number, split
from samebits.machine.visible import visible
from samebits.protocol.tasks.innermost import innermost
from samebits.protocol.tasks.meeting import is_loopback
from samebits.protocol.tasks.task import Task, port_for


@dataclass(frozen=True)
class Facts:
    """Each fact may be missing; `choose_place` puts the sources over each other."""

    launcher: str = ""
    nodes: tuple[int, int] | None = None
    """The least and the most."""
    number: int | None = None
    endpoint: str = ""
    job: str = ""
    hosts: tuple[str, ...] = ()
    """The names of all nodes in the order of their numbers."""


JOIN_S = 600.0
"""How long missing nodes are waited for, unless --rdzv-conf join_timeout says otherwise; torchrun's number."""


@dataclass(frozen=True)
class NodePlace:
    """One node's place."""

    least: int = 1
    """The run begins with at least so many nodes."""
    most: int = 1
    """And never has more."""
    number: int | None = 0
    """This node's; None: by order of joining, and node 0 is where the endpoint is."""
    endpoint: str = ""
    """`host:port` of node 0; empty if this is node 0 and it is free to choose."""
    job: str = ""
    """The run's id, the same on all nodes; empty if nobody gave one."""
    ranks: str | None = None
    """Ranks on this node, as `-n` takes them; None if the launcher does not say."""
    launcher: str = ""
    """For messages: "SLURM", "Open MPI", "MPICH", "torchrun's PET_*", "Kubernetes", "SkyPilot"; empty by hand."""
    local: str = ""
    """The address or name of this node at which others reach it, from --local-addr; empty where it is not given."""
    join_s: float | None = None
    """How long the least number of nodes may be waited for, from --rdzv-conf; None where it is not given."""
    last_call_s: float | None = None
    """How long more nodes are waited for once the least are there, from --rdzv-conf; None where it is not given."""

    hosts: tuple[str, ...] = ()
    """The names of all nodes in the order of their numbers; empty where the launcher does not say."""

    @property
    def is_one_node(self) -> bool:
        """Whether no other node can take part."""
        return self.most == 1


BACKENDS = ("static", "c10d", "samebits")
"""Values of --rdzv-backend that mean: node 0 is at the endpoint, and nothing else must run."""
STATIC_PORT = 29500
"""torchrun's --master-port where only --master-addr is given."""
MOST_NODES = 10_000
"""More is a typo."""
_TIMES = {"join_timeout": "join_s", "timeout": "join_s", "last_call_timeout": "last_call_s"}
"""Keys of --rdzv-conf that mean something here."""


@dataclass(frozen=True)
class Options:
    """Those of the command line; None: not given. PET_NAME is the launcher's word, not here."""

    nnodes: str | None = None
    node_rank: str | None = None
    rdzv_endpoint: str | None = None
    rdzv_id: str | None = None
    rdzv_backend: str | None = None
    rdzv_conf: str | None = None
    local_addr: str | None = None
    master_addr: str | None = None
    master_port: str | None = None
    standalone: bool = False
    names: tuple[str, str] = ("--", "-")
    """How an option is written in messages: what begins its name, and what stands between words."""

    def name(self, field: str) -> str:
        """An option's name for messages: `--node-rank`, or `PET_NODE_RANK`."""
        before, between = self.names
        text = f"{before}{field.replace('_', between)}"
        return text.upper() if before != "--" else text

    def nodes(self) -> tuple[int, int] | None:
        """The least and the most nodes; None where it is not given.

        Raises:
            UsageError: for what is no number of nodes, and for --standalone beside several.
        """
        if self.nnodes is None:
            return (1, 1) if self.standalone else None
        match = re.fullmatch(r"\s*([0-9]{1,9})(?::([0-9]{1,9}))?\s*", self.nnodes)
        least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= least <= most <= MOST_NODES:
            raise UsageError(
                f"{self.name('nnodes')} must be a number of nodes or MIN:MAX, but is {visible(self.nnodes)}.",
                "Write 2, or 1:4 for at least one and at most four.",
            )
        if most > 1 and self.standalone:
            raise UsageError(
                f"--standalone is for one node, and {self.name('nnodes')} asks for {self.nnodes}.",
                "Leave one of them out.",
            )
        return least, most

    def facts(self, launcher: str = "") -> Facts:
        """What the options say about several nodes.

        Raises:
            UsageError: for values that cannot be.
        """
        if self.rdzv_backend and self.rdzv_backend not in BACKENDS:
            raise UsageError(
                f"{self.name('rdzv_backend')} {visible(self.rdzv_backend)} needs a server that this version does not "
                "ask.",
                "Leave it out: nodes meet at node 0.",
            )
        job = "" if self.rdzv_id in (None, "none") else self.rdzv_id or ""
        return Facts(launcher, self.nodes(), self._number(), self._endpoint(), job)

    def times(self) -> dict[str, float]:
        """The times of --rdzv-conf, in seconds, by their names in a `NodePlace`.

        Raises:
            UsageError: for what is no such list.
        """
        found = {}
        for pair in filter(None, (self.rdzv_conf or "").split(",")):
            key, equals, value = (part.strip() for part in pair.partition("="))
            if not (key and equals and value):
                raise UsageError(
                    f"{self.name('rdzv_conf')} {visible(self.rdzv_conf)} cannot be read.",
                    "Write them as key=value,key=value.",
                )
            if key in _TIMES:
                if not re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,9})?", value):
                    raise UsageError(
                        f"{key} of {self.name('rdzv_conf')} must be a number of seconds, but is {visible(value)}.",
                        f"Write {key}=60.",
                    )
                found[_TIMES[key]] = float(value)
        return found

    def _number(self) -> int | None:
        if self.node_rank is None:
            return None
        if not re.fullmatch(r"\s*[0-9]{1,9}\s*", self.node_rank):
            raise UsageError(
                f"{self.name('node_rank')} must be a node's number, but is {visible(self.node_rank)}.",
                "Write 0 on the first node, 1 on the next.",
            )
        number, nodes = int(self.node_rank), self.nodes()
        if nodes is not None and number >= nodes[1]:
            raise UsageError(
                f"{self.name('node_rank')} {number} does not fit {self.name('nnodes')} {self.nnodes}: nodes count from "
                f"0 to {nodes[1] - 1}.",
                "Give each node a number of its own.",
            )
        return number

    def _endpoint(self) -> str:
        if self.rdzv_endpoint:
            return joined(*split(self.rdzv_endpoint, self.name("rdzv_endpoint")))
        if not self.master_addr:
            return ""
        port = STATIC_PORT
        if self.master_port:
            port = port_number(self.master_port, self.name("master_port"))
        host, _ = split(joined(self.master_addr.strip("[]"), port), self.name("master_addr"))
        return joined(host, port)


ONE = (1, 1)
TORCHRUN, KUBERNETES, SKYPILOT = "torchrun's PET_*", "Kubernetes", "SkyPilot"
"""How launchers are called in messages."""


def choose_place(options: Options, variables: Mapping[str, str], script: str = "SCRIPT") -> NodePlace:
    """This node's place; the rest is not looked at where there is one node.

    Args:
        options: the options of the command line.
        variables: the environment.
        script: SCRIPT as given, for corrected commands.

    Raises:
        UsageError: with the corrected command, where options are impossible, or contradict the launcher.
    """
    wanted, defaults = options.nodes(), of_torchrun(variables)
    if wanted == ONE:
        return _alone(options)
    task = of_task(variables, wanted[1] if wanted else None, script)
    kube, sky = of_kubernetes(variables), of_skypilot(variables)
    counts = (wanted, task and task.nodes, defaults.nodes(), kube and kube.nodes, sky and sky.nodes)
    if next(filter(None, counts), ONE) == ONE:
        return _alone(options)
    given = options.facts()
    launchers = [one for one in (task, defaults.facts(TORCHRUN), kube, sky) if one is not None]
    for one in (task, sky, kube):
        if one is not None:
            _check_both(given, one, script)
    place = _over(given, launchers)
    _check_reachable(place, script)
    times = {**defaults.times(), **options.times()}
    local = options.local_addr or defaults.local_addr or ""
    ranks = variables.get("PET_NPROC_PER_NODE") or None
    return replace(place, local=local, ranks=ranks, join_s=times.get("join_s"), last_call_s=times.get("last_call_s"))


def _alone(options: Options) -> NodePlace:
    """The only node.

    Raises:
        UsageError: where the command line counts nodes.
    """
    if (options.node_rank or "0").strip() != "0":
        raise UsageError(
            f"--node-rank {options.node_rank} is for several nodes, and there is one.",
            "Add --nnodes with their number, or leave --node-rank out.",
        )
    return NodePlace()


def _over(given: Facts, launchers: list[Facts]) -> NodePlace:
    """Put what is given over what the counting launcher says, and this over the others; the first fact wins."""
    counting = next(one for one in (given, *launchers) if one.nodes)
    order = (given, counting, *launchers)
    nodes = counting.nodes or ONE
    number = next((one.number for one in order if one.number is not None), None)
    endpoint = next((one.endpoint for one in order if one.endpoint), "")
    launcher = next((one.launcher for one in order if one.launcher and (one.nodes or one.number is not None)), "")
    if number is None and not endpoint:
        number = 0
    job = next((one.job for one in order if one.job), "")
    hosts = next((one.hosts for one in order if len(one.hosts) == nodes[1]), ())
    return NodePlace(*nodes, number, endpoint, job, launcher=launcher, hosts=hosts)


def _check_both(given: Facts, one: Facts, script: str) -> None:
    """Raise `UsageError` where the command line contradicts who started this process, and on how many nodes."""
    own = f"samebits run {script}"
    if given.nodes and one.nodes and not given.nodes[0] <= one.nodes[1] <= given.nodes[1]:
        least, most = given.nodes
        asked = f"allows {most}" if one.nodes[1] > most else f"waits for {least}"
        raise UsageError(
            f"{one.launcher} started this on {one.nodes[1]} nodes, but --nnodes {asked}.",
            f"Leave --nnodes out: {own}.",
        )
    if one.nodes and given.number is not None and one.number is not None and given.number != one.number:
        raise UsageError(
            f"--node-rank says {given.number}, but {one.launcher} says that this is node {one.number}.",
            f"Leave --node-rank out: {own}.",
        )


def _check_reachable(place: NodePlace, script: str) -> None:
    """Raise `UsageError` where this node cannot know where node 0 is, or the others cannot."""
    if place.endpoint:
        return
    if place.launcher:
        raise UsageError(
            f"{place.launcher} does not say where node 0 is.",
            f"Add its host: samebits run --rdzv-endpoint HOST:{DEFAULT_PORT} {script}.",
        )
    if place.number:
        raise UsageError(
            f"Nothing says where node 0 is, and this is node {place.number}.",
            f"Use the line that node 0 prints, or add --rdzv-endpoint HOST:{DEFAULT_PORT} with node 0's host.",
        )


# What launchers set in the environment


def of_task(variables: Mapping[str, str], wanted: int | None, script: str) -> Facts | None:
    """What srun and mpirun say: one `samebits run` per node, as its only task there; None if they started only this process.

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
    # The command line says so: one machine stands for several nodes.
    if wanted is not None and wanted == task.size:
        host = "127.0.0.1" if task.local_size == task.size else ""
        endpoint = joined(host, port_for(task.job)) if host else _endpoint(task, variables)
        return Facts(task.launcher, (task.size, task.size), task.rank, endpoint, task.job)
    raise UsageError(
        f"{task.command} started {task.size} tasks {task.where}, and each of them would start ranks of its own.",
        _corrected(task, script),
    )


def _corrected(task: Task, script: str) -> str:
    """The commands that start one `samebits run` per node, or one task per rank."""
    own = f"samebits run -n {task.local_size} {script}"
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


def of_torchrun(variables: Mapping[str, str]) -> Options:
    """Torchrun's variables: PET_NAME stands for `--name` where that is not given; an empty one counts as not set.

    Kubeflow sets them in its pods. PyTorchJob (training operator 1) says PET_NNODES, PET_NPROC_PER_NODE, and PET_NODE_RANK with
    PET_MASTER_ADDR, or with an elastic policy PET_RDZV_ENDPOINT. Trainer 2 says PET_MASTER_PORT too.
    """
    names = [one.name for one in fields(Options) if one.name not in ("standalone", "names")]
    found: dict[str, Any] = {one: variables.get(f"PET_{one.upper()}") or None for one in names}
    return Options(**found, names=("PET_", "_"))


def of_kubernetes(variables: Mapping[str, str]) -> Facts | None:
    """Kubernetes without an operator for torch: the variables of a LeaderWorkerSet, and an indexed Job's number."""
    leader = variables.get("LWS_LEADER_ADDRESS", "")
    size, number = variables.get("LWS_GROUP_SIZE", ""), variables.get("LWS_WORKER_INDEX", "")
    if leader and (found := _counted(KUBERNETES, size, number, (leader,), leader)) is not None:
        return found
    # [Note: an indexed Job counts only beside --nnodes]
    # It says which pod this is, not how many there are, and a Job of independent pods has it too.
    index = variables.get("JOB_COMPLETION_INDEX", "")
    return Facts(KUBERNETES, number=int(index)) if index.isdecimal() else None


def of_skypilot(variables: Mapping[str, str]) -> Facts | None:
    """SkyPilot's variables, which list the addresses in the order of their numbers; None where they contradict each other."""
    hosts = tuple(variables.get("SKYPILOT_NODE_IPS", "").split())
    size, number = variables.get("SKYPILOT_NUM_NODES", ""), variables.get("SKYPILOT_NODE_RANK", "")
    if str(len(hosts)) != size.lstrip("0"):
        return None
    return _counted(SKYPILOT, size, number, hosts, variables.get("SKYPILOT_TASK_ID", ""))


def _counted(launcher: str, size: str, number: str, hosts: tuple[str, ...], job: str) -> Facts | None:
    """What variables say that count all nodes; None where they are no numbers, or contradict each other."""
    if not (size.isdecimal() and number.isdecimal() and int(number) < int(size)):
        return None
    return Facts(launcher, (int(size), int(size)), int(number), joined(hosts[0], port_for(job)), job, hosts)
