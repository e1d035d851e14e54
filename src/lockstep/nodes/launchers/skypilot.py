"""SkyPilot's variables: the addresses of a cluster's nodes, in the order of their numbers."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.handover.tasks.task import port_for
from lockstep.nodes.address import joined
from lockstep.nodes.place import Facts

NAME = "SkyPilot"


def find(variables: Mapping[str, str]) -> Facts | None:
    """What they say; None elsewhere, and where they contradict each other."""
    addresses = variables.get("SKYPILOT_NODE_IPS", "").split()
    rank, nodes = variables.get("SKYPILOT_NODE_RANK", ""), variables.get("SKYPILOT_NUM_NODES", "")
    if not (rank.isdecimal() and nodes.isdecimal() and int(rank) < int(nodes) == len(addresses)):
        return None
    job = variables.get("SKYPILOT_TASK_ID", "")
    return Facts(NAME, (int(nodes), int(nodes)), int(rank), joined(addresses[0], port_for(job)), job, tuple(addresses))
