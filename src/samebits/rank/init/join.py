"""How a rank joins the others: alone, under `samebits run`, or under torchrun and anything that sets RANK and WORLD_SIZE."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from samebits.errors import EnvironmentFailure, PeerLost, UsageError
from samebits.protocol.environment import RankEnvironment
from samebits.protocol.journal.waiting_note import waits
from samebits.protocol.layout.placement import Nodes, nodes_of
from samebits.protocol.tasks.task import Task
from samebits.rank.init.default_group import count_rendezvous, initialise, may_share_memory, own_keys, say_slow
from samebits.rank.init.device import check_same_kind, is_shared
from samebits.rank.transport.alone import AloneTransport
from samebits.rank.transport.contract import Transport
from samebits.rank.transport.device_sums import BackendOrderTransport
from samebits.rank.transport.gpu_ranks import GpuTransport, HostMemoryTransport
from samebits.rank.transport.local import native
from samebits.rank.transport.local.nodes_store import read_all
from samebits.rank.transport.local.process import RankProcess
from samebits.rank.transport.over_nodes import OverNodesTransport
from samebits.rank.transport.shared_memory import SharedMemoryTransport
from samebits.rank.transport.torch_group import GroupTransport


def node_name(task: Task | None, variables: Mapping[str, str] = os.environ) -> str:
    """A name of this rank's node: what the launcher says, and the machine, because memory is shared on one machine only."""
    here = RankProcess.here()
    said = variables.get("GROUP_RANK") if task is None else task.rank - task.local_rank
    return json.dumps([said, here.boot, here.process_names])


def learn_nodes(store: Store, rank: int, world_size: int, name: str) -> Nodes | None:
    """Exchange on which node each rank is. Collective: call it on every rank.

    None where a node's ranks are not neighbours, the same on every rank.
    """
    store.set(f"node of {rank}", name)
    with waits("the ranks' nodes", [other for other in range(world_size) if other != rank]):
        gathered = read_all(store, [f"node of {other}" for other in range(world_size)])
    return nodes_of([name.decode() for name in gathered])


def join(environment: RankEnvironment, device: torch.device, *, exact: bool = True) -> Transport:
    """Meet the other ranks. Collective: call it on every rank.

    Initialises torch.distributed when there is more than one rank. Under `samebits run` the ranks meet in memory that
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
    count_rendezvous()
    position, settings = environment.position, environment.settings
    if dist.is_initialized():
        if dist.get_world_size() != max(position.world_size, 1):
            raise UsageError(
                f"torch.distributed was initialised with {dist.get_world_size()} ranks, but this process was started "
                f"as one of {position.world_size}.",
                "Let samebits.init() initialise it.",
            )
        if settings is None and position.world_size > 1:
            check_same_kind(PrefixStore("device", own_keys()), position, device)
    elif position.world_size > 1:
        initialise(environment, device, exact=exact)
    if position.world_size == 1:
        return AloneTransport()
    if device.type == "cuda":
        return GpuTransport(_between_cpus(environment, exact=True), PrefixStore("gpus", own_keys()), exact=exact)
    return _between_cpus(environment, exact=exact)


def _between_cpus(environment: RankEnvironment, *, exact: bool) -> Transport:
    """The transport for tensors of the CPU."""
    position = environment.position
    if may_share_memory(position, exact=exact):
        try:
            return SharedMemoryTransport(own_keys(), position.rank, position.world_size)
        except PeerLost:
            # A rank is gone: over Gloo the others would wait for it.
            raise
        except EnvironmentFailure as error:  # on every rank
            say_slow(position, str(error))
    elif exact and not native.why_not() and (spanning := _over_nodes(environment)) is not None:
        return spanning
    return GroupTransport() if exact else BackendOrderTransport()


def _over_nodes(environment: RankEnvironment) -> Transport | None:
    """The transport of ranks on several nodes; None, on every rank, where they have to talk flatly over Gloo."""
    position = environment.position
    store, rank = own_keys(), position.rank
    nodes = learn_nodes(store, rank, position.world_size, node_name(environment.task))
    try:
        if nodes is None:
            say_slow(position, "the ranks of a node are not neighbours, as `samebits run` and torchrun number them")
        elif nodes.num_nodes == 1:
            return SharedMemoryTransport(store, rank, position.world_size)
        else:
            return OverNodesTransport(store, rank, nodes)
    except PeerLost:
        raise
    except EnvironmentFailure as error:  # on every rank
        say_slow(position, str(error))
    return None
