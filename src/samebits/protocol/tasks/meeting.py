"""Where the tasks of a srun or mpirun meet, one rank each: the same for all of them, without a word between them."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass

from samebits.errors import UsageError
from samebits.protocol.tasks.task import Task, port_for

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class TaskMeeting:
    """Where rank 0 listens."""

    host: str
    port: int
    others: tuple[str, ...] = ()
    """Names of other nodes; rank 0 asks which of its addresses leads to them, where its own name does not say."""

    @property
    def is_on_one_node(self) -> bool:
        """Whether all tasks are on this node, and nothing has to leave it."""
        return self.host == LOOPBACK


def meeting_of(task: Task, variables: Mapping[str, str], server: int | None = None) -> TaskMeeting:
    """The place.

    Args:
        task: one of the tasks.
        variables: its environment; MASTER_ADDR and MASTER_PORT there win.
        server: the process that started this node's tasks, where it is known; two of them at a time differ.

    Raises:
        UsageError: where nobody says on which host rank 0 is.
    """
    # The server is part of the job's name: two mpiruns of one job on a node must not meet at one port.
    if task.local_size == task.size:
        return TaskMeeting(LOOPBACK, _port(variables, f"{task.job} {server or ''}"))
    named = variables.get("MASTER_ADDR", "")
    host = named if named and not is_loopback(named) else task.hosts[0] if task.hosts else ""
    if not host:
        raise UsageError(
            f"{task.launcher} does not say on which host rank 0 is.",
            f"Name it: {task.command} {'-genv MASTER_ADDR HOST' if task.launcher == 'MPICH' else '-x MASTER_ADDR=HOST'} ...",
        )
    return TaskMeeting(host, _port(variables, task.job), task.hosts[1:])


def _port(variables: Mapping[str, str], job: str) -> int:
    text = variables.get("MASTER_PORT", "")
    if not text:
        return port_for(job)
    if not text.isdecimal() or not 0 < int(text) < 1 << 16:
        raise UsageError(f"MASTER_PORT must be a port from 1 to 65535, but is {text}.", "Unset it, or set a free one.")
    return int(text)


def is_loopback(host: str) -> bool:
    """Whether a name or an address can only mean the machine that uses it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
