"""The strategies by name."""

from __future__ import annotations

import torch

from lockstep.layout.mesh import Mesh
from lockstep.layout.placement import Placement
from lockstep.strategy.contract import Strategy
from lockstep.strategy.dp.data_parallel import DataParallel
from lockstep.strategy.hogwild.hogwild import Hogwild
from lockstep.strategy.replica.replica import Replica
from lockstep.strategy.stages.pipeline import Pipeline
from lockstep.strategy.stages.several_devices import SeveralDevices
from lockstep.strategy.stages.staged import Staged
from lockstep.strategy.zero1.once_per_node import OncePerNode
from lockstep.strategy.zero1.visibility import HandedAround
from lockstep.strategy.zero1.zero1 import Zero1
from lockstep.transport.contract import Transport


def choose_strategy(mesh: Mesh, transport: Transport, placement: Placement, device: torch.device) -> Strategy:
    """The strategy of the mesh; every rank must call it."""
    if mesh.stages > 1:
        return (Pipeline if mesh.strategy == "pipeline" else Staged)(mesh, transport, placement, device)
    if mesh.strategy == "dp":
        return DataParallel(Replica("dp", transport, placement), mesh.copies)
    if mesh.strategy == "hogwild" and mesh.num_ranks > 1:
        return Hogwild(transport, placement)
    if mesh.strategy == "model_parallel" and device.type == "cuda" and torch.cuda.device_count() > 1:
        devices = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
        return SeveralDevices(transport, placement, devices)
    if mesh.strategy == "zero1" and mesh.num_ranks > 1:
        shared = transport.shares_memory
        return Zero1(transport, placement, OncePerNode(transport) if shared else HandedAround(transport))
    return Replica(mesh.strategy, transport, placement)
