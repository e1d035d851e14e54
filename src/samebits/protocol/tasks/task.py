"""A task: a process that another launcher started several times."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

FIRST_PORT, NUM_PORTS = 29400, 3300
"""torch's own port for a rendezvous, and how many follow it below the ports that Linux gives to outgoing connections."""


@dataclass(frozen=True)
class Task:
    """Which process of how many this is, as its launcher says."""

    launcher: str
    """"SLURM", "Open MPI" or "MPICH"."""
    command: str
    """What starts tasks: "srun" or "mpirun"."""
    rank: int
    size: int
    local_rank: int
    local_size: int
    """Tasks on this node."""
    nodes: int | None
    """On how many nodes the tasks are; None where the launcher does not say."""
    node: int | None
    """This node's number; None where the launcher does not say."""
    hosts: tuple[str, ...]
    """The nodes' names in the order of their numbers; empty where the launcher does not say."""
    job: str
    """What distinguishes these tasks from others at the same time; empty where the launcher has no name for it."""

    @property
    def is_one_per_node(self) -> bool:
        """Whether this is the only task on its node, and there are other nodes."""
        return self.local_size == 1 and self.size > 1 and self.nodes in (None, self.size)

    @property
    def where(self) -> str:
        """For a message: `on 2 nodes`, `on this node`."""
        if self.local_size == self.size:
            return "on this node"
        return f"on {self.nodes} nodes" if self.nodes else "on several nodes"


def is_in_order(places: Sequence[tuple[str, int]]) -> bool:
    """Whether ranks of one node follow each other, as everything in a run takes for granted.

    Args:
        places: each rank's node, by a name, and its local rank.
    """
    return all(
        local == 0 or (rank > 0 and places[rank - 1] == (node, local - 1)) for rank, (node, local) in enumerate(places)
    )


def port_for(job: str) -> int:
    """The port at which the processes of a job meet where nobody names one: the same on every node."""
    return FIRST_PORT + zlib.crc32(job.encode()) % NUM_PORTS
