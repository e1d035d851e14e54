"""The default group of torch.distributed, which the ranks meet in: by which store, over which backend."""

from __future__ import annotations

import datetime as dt
import os
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]  # torch imports it there for everybody
from torch.distributed.distributed_c10d import PrefixStore, Store

from samebits.errors import EnvironmentFailure, UsageError
from samebits.machine.this_machine import nearest
from samebits.notices import say
from samebits.protocol.environment import Position, RankEnvironment, RankSettings, check_address
from samebits.protocol.journal.waiting_note import waits
from samebits.protocol.run_folder import RunFolder
from samebits.protocol.tasks.meeting import meeting_of
from samebits.protocol.tasks.mpi import SERVERS
from samebits.protocol.tasks.task import Task
from samebits.rank.init.device import check_same_kind
from samebits.rank.init.task_store import task_store
from samebits.rank.process_group.arguments import CollectiveFailed
from samebits.rank.process_group.self_test import group_problem
from samebits.rank.process_group.watched import NAME
from samebits.rank.transport.across import PATIENCE
from samebits.rank.transport.local import native
from samebits.rank.transport.local.nodes_store import gloo_reads_at_once, store_of_all_nodes
from samebits.rank.transport.local.shared_store import inherited_store

CONNECT = dt.timedelta(minutes=30)
"""How long Gloo may take to connect the ranks of all nodes; torch's own default."""


_notice_given_in: set[int] = set()
"""The last meeting that something was said about."""


_stores: list[Store] = []
"""Kept: without torchrun rank 0 serves it."""


_num_rendezvous = 0
"""How often this process has met the others; a file store cannot be used twice, because it remembers old addresses."""


def may_share_memory(position: Position, *, exact: bool) -> bool:
    if not exact or position.local_world_size != position.world_size:
        return False
    if reason := native.why_not():
        say_slow(position, reason)
    return not reason


def count_rendezvous() -> None:
    """This process is about to meet the others once more."""
    global _num_rendezvous  # noqa: PLW0603 - torch.distributed is one per process, and so is the count of its meetings
    _num_rendezvous += 1


def initialise(environment: RankEnvironment, device: torch.device, *, exact: bool) -> None:
    """Make the default group, for what the script and its libraries exchange themselves."""
    position = environment.position
    if environment.settings is None:
        if environment.task is None:
            check_address(os.environ)
        _check_same_kind(environment, device)
    if device.type == "cpu" and may_share_memory(position, exact=exact) and _make_own_group(environment):
        return
    try:
        _make_default_group(environment, "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    except UsageError:
        # Of a backend that the command line names.
        raise
    except (RuntimeError, ValueError) as error:
        raise EnvironmentFailure(f"rank {position.rank} could not join the other ranks: {error}") from error


def _check_same_kind(environment: RankEnvironment, device: torch.device) -> None:
    position = environment.position
    try:
        store = _task_store(environment.task) if environment.task is not None else _launchers_store()
        check_same_kind(PrefixStore(f"samebits {_num_rendezvous} device", store), position, device)
    except UsageError:
        raise
    except (RuntimeError, ValueError) as error:
        raise EnvironmentFailure(f"rank {position.rank} could not join the other ranks: {error}") from error


def _launchers_store() -> Store:
    """The one that torchrun, or whoever set MASTER_ADDR, lets ranks meet in; of this start, where the launcher keeps its store."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store: Store = PrefixStore(f"samebits start {attempt}", next(dist.rendezvous("env://"))[0])  # type: ignore[attr-defined]
    _stores.append(store)
    return store


def _make_own_group(environment: RankEnvironment) -> bool:
    """Make the default group in shared memory; False if that is impossible, which is the same on every rank."""
    if problem := group_problem():
        _say_once(environment.position, f"torch.distributed uses Gloo here. {problem}")
        return False
    try:
        _make_default_group(environment, NAME)
    except CollectiveFailed as error:
        say_slow(environment.position, str(error))
        return False
    return True


def _make_default_group(environment: RankEnvironment, backend: str) -> None:
    position, settings = environment.position, environment.settings
    connecting: AbstractContextManager[None] = nullcontext()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if environment.task is not None:
            store = PrefixStore(backend, _task_store(environment.task))
        elif settings is None:
            # Under names of this meeting: what an earlier group of this process has left in the launcher's store are addresses
            # at which nobody is any more.
            store = PrefixStore(f"samebits.init {_num_rendezvous}/{backend}", _stores[-1])
        else:
            store = PrefixStore(backend, _rendezvous_store(settings, position.world_size))
            if settings.seat is not None:
                connecting = _connecting(store)
        with connecting:
            dist.init_process_group(backend, store=store, rank=position.rank, world_size=position.world_size)


@contextmanager
def _connecting(store: Store) -> Iterator[None]:
    """While the ranks of all nodes make the default group."""
    with waits("init_process_group"), gloo_reads_at_once(store, CONNECT):
        yield


def _task_store(task: Task) -> Store:
    """The store of this process's current meeting, under srun or mpirun."""
    server = nearest(SERVERS) if task.command == "mpirun" else None
    return PrefixStore(f"samebits.init {_num_rendezvous}", task_store(task, meeting_of(task, os.environ, server)))


def _rendezvous_store(settings: RankSettings, world_size: int) -> Store:
    """The store of this process's current meeting only; the same on all ranks, which have met equally often."""
    if settings.seat is not None:
        return PrefixStore(f"samebits.init {_num_rendezvous}", store_of_all_nodes(settings.seat, PATIENCE))
    shared = inherited_store()
    if shared is None:
        return FileStore(str(RunFolder(settings.run_folder).store(_num_rendezvous)), world_size)
    shared.set_timeout(PATIENCE)
    return PrefixStore(f"samebits.init {_num_rendezvous}", shared)


def say_slow(position: Position, reason: str) -> None:
    _say_once(position, f"the ranks talk over Gloo, not through shared memory: {reason.rstrip('.')}.")


def _say_once(position: Position, what: str) -> None:
    """Say once in a meeting why its ranks do not use what would be fastest."""
    if position.rank == 0 and _notice_given_in != {_num_rendezvous}:
        _notice_given_in.clear()
        _notice_given_in.add(_num_rendezvous)
        say(what)


def own_keys() -> Store:
    """The default group's store, with keys that nobody else uses."""
    default = dist.group.WORLD
    assert default is not None
    return PrefixStore(f"samebits {_num_rendezvous}", default.get_group_store())


def leave() -> None:
    """Let go of torch.distributed. Not a collective; the other ranks must be done with it."""
    if dist.is_initialized():
        dist.destroy_process_group()
