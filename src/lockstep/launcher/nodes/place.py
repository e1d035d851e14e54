"""Where a node is among the nodes of a run: what each source knows (`Facts`, `Options`), and what follows (`NodePlace`, by `choice`)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lockstep.errors import UsageError
from lockstep.launcher.nodes.address import joined, port_number, split
from lockstep.machine.visible import visible


@dataclass(frozen=True)
class Facts:
    """Each fact may be missing; `choice` puts the sources over each other."""

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


BACKENDS = ("static", "c10d", "lockstep")
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
