"""Where a node is among the nodes of a run: all that its agent must know to find the others."""

from __future__ import annotations

from dataclasses import dataclass

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
    """The address or name of this node at which others reach it, from --local-addr; empty if nobody says."""
    join_s: float | None = None
    """How long the least number of nodes may be waited for, from --rdzv-conf; None if nobody says."""
    last_call_s: float | None = None
    """How long more nodes are waited for once the least are there, from --rdzv-conf; None if nobody says."""

    hosts: tuple[str, ...] = ()
    """The names of all nodes in the order of their numbers; empty where the launcher does not say."""

    @property
    def is_one_node(self) -> bool:
        """Whether no other node can take part."""
        return self.most == 1
