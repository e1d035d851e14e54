"""Kubernetes without an operator for torch: an indexed Job's number, and the variables of a LeaderWorkerSet.

An indexed Job says which pod this is (JOB_COMPLETION_INDEX), not how many there are: a Job of independent pods has it too,
so it counts only beside --nnodes.
"""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.handover.tasks.task import port_for
from lockstep.nodes.address import joined
from lockstep.nodes.place import Facts

NAME = "Kubernetes"


def find(variables: Mapping[str, str]) -> Facts | None:
    """What they say; None outside of both."""
    return _leader_worker_set(variables) or _indexed_job(variables)


def _leader_worker_set(variables: Mapping[str, str]) -> Facts | None:
    leader = variables.get("LWS_LEADER_ADDRESS", "")
    size, index = variables.get("LWS_GROUP_SIZE", ""), variables.get("LWS_WORKER_INDEX", "")
    if not (leader and size.isdecimal() and index.isdecimal() and int(index) < int(size)):
        return None
    return Facts(NAME, (int(size), int(size)), int(index), joined(leader, port_for(leader)), leader)


def _indexed_job(variables: Mapping[str, str]) -> Facts | None:
    index = variables.get("JOB_COMPLETION_INDEX", "")
    return Facts(NAME, number=int(index)) if index.isdecimal() else None
