"""How a rank joins the others: alone, under `lockstep run`, or under torchrun and anything that sets RANK and WORLD_SIZE."""

from __future__ import annotations

import datetime as dt
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch.distributed import FileStore  # type: ignore[attr-defined]  # torch imports it there for everybody
from torch.distributed.distributed_c10d import PrefixStore, Store

from lockstep.errors import EnvironmentFailure, PeerLost, UsageError
from lockstep.machine.this_machine import nearest
from lockstep.notices import say
from lockstep.protocol.environment import Position, RankEnvironment, RankSettings, check_address
from lockstep.protocol.journal.waiting_note import waits
from lockstep.protocol.layout.placement import Nodes, nodes_of
from lockstep.protocol.run_folder import RunFolder
from lockstep.protocol.tasks.meeting import meeting_of
from lockstep.protocol.tasks.mpi import SERVERS
from lockstep.protocol.tasks.task import Task
from lockstep.rank.init.device import check_same_kind, is_shared
from lockstep.rank.init.task_store import task_store
from lockstep.rank.process_group.arguments import CollectiveFailed
from lockstep.rank.process_group.self_test import group_problem
from lockstep.rank.process_group.watched import NAME
from lockstep.rank.transport.across import PATIENCE
from lockstep.rank.transport.alone import AloneTransport
from lockstep.rank.transport.contract import Transport
from lockstep.rank.transport.device_sums import BackendOrderTransport
from lockstep.rank.transport.gpu_ranks import GpuTransport, HostMemoryTransport
from lockstep.rank.transport.local import native
from lockstep.rank.transport.local.nodes_store import gloo_reads_at_once, read_all, store_of_all_nodes
from lockstep.rank.transport.local.process import RankProcess
from lockstep.rank.transport.local.shared_store import inherited_store
from lockstep.rank.transport.over_nodes import OverNodesTransport
from lockstep.rank.transport.shared_memory import SharedMemoryTransport
from lockstep.rank.transport.torch_group import GroupTransport


def node_name(task: Task | None, variables: Mapping[str, str] = os.environ) -> str:
    """A name of this rank's node: what the launcher says, and the machine, because memory is shared on one machine only.

    Args:
        task: of srun or mpirun, which this rank is.
        variables: its environment.
    """
    here = RankProcess.here()
    said = variables.get("GROUP_RANK") if task is None else task.rank - task.local_rank
    return json.dumps([said, here.boot, here.process_names])


def learn_nodes(store: Store, rank: int, world_size: int, name: str) -> Nodes | None:
    """Exchange on which node each rank is. Collective: call it on every rank.

    None where a node's ranks are not neighbours, the same on every rank.
    """
    store.set(f"node of {rank}", name)
    with waits("the ranks' nodes", [other for other in range(world_size) if other != rank]):
        told = read_all(store, [f"node of {other}" for other in range(world_size)])
    return nodes_of([name.decode() for name in told])


CONNECT = dt.timedelta(minutes=30)
"""How long Gloo may take to connect the ranks of all nodes; torch's own default."""

_said_in: set[int] = set()
"""The last meeting that something was said about."""

_stores: list[Store] = []
"""Kept: without torchrun rank 0 serves it."""

_meetings = 0
"""How often this process has met the others; a file store cannot be used twice, because it remembers old addresses."""


def join(environment: RankEnvironment, device: torch.device, *, exact: bool = True) -> Transport:
    """Meet the other ranks. Collective: call it on every rank.

    Initialises torch.distributed when there is more than one rank. Under `lockstep run` the ranks meet in memory that
    they inherit, and no port is open (without the compiled part, in a file in the run folder, and Gloo listens on
    loopback only); as a task of srun or mpirun, through a store of rank 0's on one address; under another launcher,
    through the store that it names. A default group that the script has made
    is used. Ranks with GPUs meet as those of the CPU do, and over NCCL beside; those that share a GPU exchange through host
    memory instead. Without `exact` the backend adds in its own order.

    Raises:
        UsageError: when the script's own default group does not have the size that the launcher said.
        EnvironmentFailure: when the ranks cannot meet.
    """
    if is_shared(device, environment.position):
        return HostMemoryTransport(_join(environment, torch.device("cpu"), exact=exact))
    return _join(environment, device, exact=exact)


def _join(environment: RankEnvironment, device: torch.device, *, exact: bool) -> Transport:
    """The transport for tensors of this kind of device."""
    global _meetings  # noqa: PLW0603 - torch.distributed is one per process, and so is the count of its meetings
    _meetings += 1
    position, settings = environment.position, environment.settings
    if dist.is_initialized():
        if dist.get_world_size() != max(position.world_size, 1):
            raise UsageError(
                f"torch.distributed was initialised with {dist.get_world_size()} ranks, but this process was started "
                f"as one of {position.world_size}.",
                "Let lockstep.init() initialise it.",
            )
        if settings is None and position.world_size > 1:
            check_same_kind(PrefixStore("device", _own_keys()), position, device)
    elif position.world_size > 1:
        _initialise(environment, device, exact=exact)
    if position.world_size == 1:
        return AloneTransport()
    if device.type == "cuda":
        return GpuTransport(_between_cpus(environment, exact=True), PrefixStore("gpus", _own_keys()), exact=exact)
    return _between_cpus(environment, exact=exact)


def _between_cpus(environment: RankEnvironment, *, exact: bool) -> Transport:
    """The transport for tensors of the CPU."""
    position = environment.position
    if _may_share_memory(position, exact=exact):
        try:
            return SharedMemoryTransport(_own_keys(), position.rank, position.world_size)
        except PeerLost:  # over Gloo the others would wait for it
            raise
        except EnvironmentFailure as error:  # on every rank
            _say_slow(position, str(error))
    elif exact and not native.why_not() and (spanning := _over_nodes(environment)) is not None:
        return spanning
    return GroupTransport() if exact else BackendOrderTransport()


def _over_nodes(environment: RankEnvironment) -> Transport | None:
    """The transport of ranks on several nodes; None, on every rank, where they have to talk flatly over Gloo."""
    position = environment.position
    store, rank = _own_keys(), position.rank
    nodes = learn_nodes(store, rank, position.world_size, node_name(environment.task))
    try:
        if nodes is None:
            _say_slow(position, "the ranks of a node are not neighbours, as `lockstep run` and torchrun number them")
        elif nodes.num_nodes == 1:
            return SharedMemoryTransport(store, rank, position.world_size)
        else:
            return OverNodesTransport(store, rank, nodes)
    except PeerLost:
        raise
    except EnvironmentFailure as error:  # on every rank
        _say_slow(position, str(error))
    return None


def _may_share_memory(position: Position, *, exact: bool) -> bool:
    if not exact or position.local_world_size != position.world_size:
        return False
    if reason := native.why_not():
        _say_slow(position, reason)
    return not reason


def _initialise(environment: RankEnvironment, device: torch.device, *, exact: bool) -> None:
    """Make the default group, for what the script and its libraries exchange themselves."""
    position = environment.position
    if environment.settings is None:
        if environment.task is None:
            check_address(os.environ)
        _check_same_kind(environment, device)
    if device.type == "cpu" and _may_share_memory(position, exact=exact) and _make_own_group(environment):
        return
    try:
        _make_default_group(environment, "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    except UsageError:  # of a backend that the command line names
        raise
    except (RuntimeError, ValueError) as error:
        raise EnvironmentFailure(f"rank {position.rank} could not join the other ranks: {error}") from error


def _check_same_kind(environment: RankEnvironment, device: torch.device) -> None:
    position = environment.position
    try:
        store = _task_store(environment.task) if environment.task is not None else _launchers_store()
        check_same_kind(PrefixStore(f"lockstep {_meetings} device", store), position, device)
    except UsageError:
        raise
    except (RuntimeError, ValueError) as error:
        raise EnvironmentFailure(f"rank {position.rank} could not join the other ranks: {error}") from error


def _launchers_store() -> Store:
    """The one that torchrun, or whoever set MASTER_ADDR, lets ranks meet in; torch's own meeting uses it once more."""
    store: Store = next(dist.rendezvous("env://"))[0]  # type: ignore[attr-defined]
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
        _say_slow(environment.position, str(error))
        return False
    return True


def _make_default_group(environment: RankEnvironment, backend: str) -> None:
    position, settings = environment.position, environment.settings
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if environment.task is not None:
            store = PrefixStore(backend, _task_store(environment.task))
            dist.init_process_group(backend, store=store, rank=position.rank, world_size=position.world_size)
        elif settings is None:
            dist.init_process_group(backend)
        else:
            store = PrefixStore(backend, _meeting_store(settings, position.world_size))
            with _meeting_of_nodes(store) if settings.seat is not None else nullcontext():
                dist.init_process_group(backend, store=store, rank=position.rank, world_size=position.world_size)


@contextmanager
def _meeting_of_nodes(store: Store) -> Iterator[None]:
    """While the ranks of all nodes make the default group."""
    with waits("init_process_group"), gloo_reads_at_once(store, CONNECT):
        yield


def _task_store(task: Task) -> Store:
    """The store of this process's current meeting, under srun or mpirun."""
    server = nearest(SERVERS) if task.command == "mpirun" else None
    return PrefixStore(f"lockstep.init {_meetings}", task_store(task, meeting_of(task, os.environ, server)))


def _meeting_store(settings: RankSettings, world_size: int) -> Store:
    """The store of this process's current meeting only; the same on all ranks, which have met equally often."""
    if settings.seat is not None:
        return PrefixStore(f"lockstep.init {_meetings}", store_of_all_nodes(settings.seat, PATIENCE))
    shared = inherited_store()
    if shared is None:
        return FileStore(str(RunFolder(settings.run_folder).store(_meetings)), world_size)
    shared.set_timeout(PATIENCE)
    return PrefixStore(f"lockstep.init {_meetings}", shared)


def _say_slow(position: Position, reason: str) -> None:
    _say_once(position, f"the ranks talk over Gloo, not through shared memory: {reason.rstrip('.')}.")


def _say_once(position: Position, what: str) -> None:
    """Say once in a meeting why its ranks do not use what would be fastest."""
    if position.rank == 0 and _said_in != {_meetings}:
        _said_in.clear()
        _said_in.add(_meetings)
        say(what)


def _own_keys() -> Store:
    """The default group's store, with keys that nobody else uses."""
    default = dist.group.WORLD
    assert default is not None
    return PrefixStore(f"lockstep {_meetings}", default.get_group_store())


def leave() -> None:
    """Let go of torch.distributed. Not a collective; the other ranks must be done with it."""
    if dist.is_initialized():
        dist.destroy_process_group()
