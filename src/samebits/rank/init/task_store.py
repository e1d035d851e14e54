"""The store through which the tasks of srun or mpirun meet: rank 0 listens on one address, never on all of them.

Whoever reaches that address can join; a run on several nodes under `samebits run` asks for a key.
"""

from __future__ import annotations

import datetime as dt
import errno
import json
import os
import socket
import time
from collections.abc import Mapping

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch imports it there for everybody
from torch.distributed.distributed_c10d import PrefixStore, Store

from samebits.errors import EnvironmentFailure, UsageError
from samebits.machine.this_machine import address_towards, interface_with, nearest
from samebits.notices import say
from samebits.protocol.tasks.meeting import TaskMeeting, is_loopback
from samebits.protocol.tasks.mpi import SERVERS, is_bound_unasked
from samebits.protocol.tasks.task import Task, is_in_order
from samebits.rank.transport.across import PATIENCE

SAY_EVERY_S = 5.0
"""How often it is said who is missing."""
GIVE_UP_S = 600.0
"""Tasks start together; one that is not there by then does not come."""
LOOK_S = 0.05
"""How often a rank looks whether rank 0 listens, and rank 0 whether the others are there."""
VERDICT, HEARD = "verdict", "heard"
_stores: dict[TaskMeeting, TCPStore] = {}
"""One in a process: rank 0's ends with it."""


def task_store(task: Task, meeting: TaskMeeting) -> Store:
    """Meet all other tasks; the store has keys of this job only. Collective.

    Raises:
        UsageError: the place that was named is not this node's, taken, or unknown.
        EnvironmentFailure: others are missing.
    """
    if meeting not in _stores:
        _stores[meeting] = _serve(task, meeting) if task.rank == 0 else _reach(task, meeting)
        _meet(task, meeting, PrefixStore(f"here {task.job}", _stores[meeting]))
    return PrefixStore(f"tasks {task.job}", _stores[meeting])


def _serve(task: Task, meeting: TaskMeeting) -> TCPStore:
    # [Note: why rank 0 binds the socket itself]
    # torch's own `env://` listens on every address of the machine. Here it is loopback where all tasks are on one node,
    # else the one address by which the other nodes know this one.
    listening = _bound(meeting)
    listening.listen(socket.SOMAXCONN)
    address = str(listening.getsockname()[0])
    _use_interface(meeting, address)
    # The store takes the descriptor over, and closes it.
    return TCPStore(
        address,
        meeting.port,
        task.size,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )


def _bound(meeting: TaskMeeting) -> socket.socket:
    """A socket on the one address by which the others know this node."""
    for address in _addresses(meeting):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        bound = socket.socket(family, socket.SOCK_STREAM)
        # The run before may have just ended there.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((address, meeting.port))
        except OSError as error:
            bound.close()
            if error.errno == errno.EADDRNOTAVAIL:
                continue
            reason = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used: {error.strerror}"
            raise UsageError(
                f"Port {meeting.port} of {address}, where the tasks meet, {reason}.",
                "Set MASTER_PORT to a free one for all tasks.",
            ) from None
        return bound
    raise UsageError(
        f"{meeting.host}, where the tasks meet, is not this node, but this is rank 0.",
        "Set MASTER_ADDR to the host of rank 0, or unset it.",
    )


def _addresses(meeting: TaskMeeting) -> list[str]:
    """Where rank 0 may listen. Where its name means loopback, this is its own node, and has an address to the others."""
    if meeting.is_on_one_node:
        return [meeting.host]
    found = [address for address in _resolved(meeting) if not is_loopback(address)]
    if found:
        return found
    for other in meeting.others:
        try:
            return [address_towards(other, meeting.port)]
        except OSError:
            continue
    raise UsageError(
        f"{meeting.host}, where the tasks meet, is a loopback address here, which other nodes cannot reach.",
        "Set MASTER_ADDR to an address of rank 0's node.",
    )


def _resolved(meeting: TaskMeeting) -> list[str]:
    try:
        found = socket.getaddrinfo(meeting.host, meeting.port, type=socket.SOCK_STREAM)
    except socket.gaierror:
        raise UsageError(
            f"{meeting.host}, where the tasks meet, is not a host that this node knows.",
            "Set MASTER_ADDR to an address of rank 0's node.",
        ) from None
    return [str(place[0]) for *_, place in sorted(found, key=lambda one: one[0] != socket.AF_INET)]


def _reach(task: Task, meeting: TaskMeeting) -> TCPStore:
    """Wait until rank 0 listens."""
    began = said = time.monotonic()
    addresses = _addresses(meeting)
    while True:
        for address in addresses:
            try:
                with socket.create_connection((address, meeting.port), SAY_EVERY_S) as connection:
                    _use_interface(meeting, str(connection.getsockname()[0]))
            except OSError:
                continue
            return _client(address, task, meeting)
        now = time.monotonic()
        if now - began > GIVE_UP_S:
            raise EnvironmentFailure(f"rank {task.rank} did not reach rank 0 at {meeting.host} port {meeting.port}.")
        if now - said > SAY_EVERY_S:
            said = now
            say(f"rank {task.rank} waits for rank 0 at {meeting.host} port {meeting.port}.")
        time.sleep(LOOK_S)


def _client(address: str, task: Task, meeting: TaskMeeting) -> TCPStore:
    try:
        return TCPStore(address, meeting.port, task.size, is_master=False, timeout=dt.timedelta(seconds=SAY_EVERY_S))
    except RuntimeError:
        raise UsageError(
            f"What answers at {address} port {meeting.port}, where the tasks meet, is not rank 0.",
            "Set MASTER_PORT to a free one for all tasks.",
        ) from None


def _meet(task: Task, meeting: TaskMeeting, store: Store) -> None:
    """Wait until all tasks have come. Rank 0 looks after them, and says who is missing; the others receive its verdict."""
    store.set(str(task.rank), json.dumps([socket.gethostname(), task.local_rank]))
    if task.rank == 0:
        _await_others(task, meeting, store)
        verdict = _verdict(task, store)
        store.set(VERDICT, verdict)
    else:
        try:
            store.wait([VERDICT], dt.timedelta(seconds=GIVE_UP_S))
            verdict = store.get(VERDICT).decode()
        except RuntimeError:
            raise EnvironmentFailure(f"rank {task.rank}: rank 0 ended before all {task.size} tasks had met.") from None
        store.add(HEARD, 1)
    # A rank may be late at the next meeting.
    store.set_timeout(PATIENCE)
    if verdict:
        _await_hearing(task, store)
        option = "Add --distribution=block." if task.command == "srun" else "Leave --map-by out, or use --map-by slot."
        raise UsageError(verdict, option)


def _await_others(task: Task, meeting: TaskMeeting, store: Store) -> None:
    began = said = time.monotonic()
    missing = [str(rank) for rank in range(1, task.size)]
    while missing := [rank for rank in missing if not store.check([rank])]:
        now = time.monotonic()
        what = f"{len(missing)} of {task.size} tasks at {meeting.host} port {meeting.port}: rank {', '.join(missing)}"
        if now - began > GIVE_UP_S:
            raise EnvironmentFailure(f"rank 0 timed out waiting for {what}.")
        if now - said > SAY_EVERY_S:
            said = now
            say(f"waiting for {what}.")
        time.sleep(LOOK_S)


def _verdict(task: Task, store: Store) -> str:
    """Why these tasks cannot be the ranks of a run; empty if they can."""
    gathered = [json.loads(store.get(str(rank))) for rank in range(task.size)]
    if is_in_order([(node, local) for node, local in gathered]):
        return ""
    return f"{task.command} dealt the ranks out in turn, but those of a node must be neighbours."


def _await_hearing(task: Task, store: Store) -> None:
    """Rank 0's store ends with it: let the others receive the reason first."""
    until = time.monotonic() + SAY_EVERY_S
    while task.rank == 0 and store.add(HEARD, 0) < task.size - 1 and time.monotonic() < until:
        time.sleep(LOOK_S)


def _use_interface(meeting: TaskMeeting, address: str) -> None:
    """Tell Gloo and NCCL the interface that leads to the other nodes, unless somebody else did."""
    if meeting.is_on_one_node:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    elif name := interface_with(address):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", name)


def undo_binding(variables: Mapping[str, str]) -> None:
    """Use the cores of the mpirun that started this process, where it bound it to one of them by default."""
    server = nearest(SERVERS) if is_bound_unasked(variables) else None
    if server is not None:
        os.sched_setaffinity(0, os.sched_getaffinity(server))


def cores_of(task: Task, variables: Mapping[str, str]) -> int:
    """The cores that all tasks of this node have together."""
    given = variables.get("SLURM_CPUS_ON_NODE", "")
    if task.command == "srun" and given.isdecimal():
        return int(given)
    server = nearest(SERVERS) if task.command == "mpirun" else None
    return len(os.sched_getaffinity(0 if server is None else server))
