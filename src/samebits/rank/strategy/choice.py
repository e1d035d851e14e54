"""Make a strategy by its name."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from samebits.protocol.layout.mesh import Mesh
from samebits.protocol.layout.placement import Placement
from samebits.rank.strategy.contract import Strategy
from samebits.rank.strategy.dp import DataParallel
from samebits.rank.strategy.hogwild import Hogwild
from samebits.rank.strategy.precision import Precision
from samebits.rank.strategy.replica.replica import Replica
from samebits.rank.strategy.stages.cut_at_first_call import CutAtFirstCall
from samebits.rank.strategy.stages.cut_model import CutModel
from samebits.rank.strategy.stages.device_stages import DeviceStages
from samebits.rank.strategy.stages.passes import PipelinePass, StagedPass
from samebits.rank.strategy.stages.rank_stages import RankStages
from samebits.rank.strategy.zero1.node_shared_parameters import NodeSharedParameters
from samebits.rank.strategy.zero1.update_agreement import BroadcastParameters
from samebits.rank.strategy.zero1.zero1 import Zero1
from samebits.rank.transport.contract import Transport


def choose_strategy(
    mesh: Mesh, transport: Transport, placement: Placement, device: torch.device, precision: Precision
) -> Strategy:
    """Make the mesh's strategy. Collective: call it on every rank."""
    if mesh.stages > 1:
        return on_several_ranks(mesh, transport, placement, device, precision)
    if mesh.strategy == "dp":
        return DataParallel(Replica("dp", transport, placement, precision), mesh.copies)
    if mesh.strategy == "hogwild" and mesh.num_ranks > 1:
        return Hogwild(transport, placement, precision)
    if devices := devices_for_stages(mesh, device):
        return on_several_devices(transport, placement, devices, precision)
    return in_one_piece(mesh, transport, placement, precision)


def in_one_piece(mesh: Mesh, transport: Transport, placement: Placement, precision: Precision) -> Strategy:
    """Put the whole model on each rank, which does the same as the others."""
    if mesh.strategy == "zero1" and mesh.num_ranks > 1:
        shared = transport.shares_memory
        visibility = NodeSharedParameters(transport) if shared else BroadcastParameters(transport)
        return Zero1(transport, placement, precision, visibility)
    return Replica(mesh.strategy, transport, placement, precision)


def devices_for_stages(mesh: Mesh, device: torch.device) -> list[torch.device]:
    """The devices of this process that a model's stages go to; none where each rank has one device."""
    num_devices = torch.cuda.device_count() if device.type == "cuda" else 0
    if mesh.stages > 1 or mesh.strategy != "model_parallel" or num_devices < 2:
        return []
    return [torch.device("cuda", number) for number in range(num_devices)]


def on_several_ranks(
    mesh: Mesh, transport: Transport, placement: Placement, device: torch.device, precision: Precision
) -> CutModel:
    """Put one stage on each rank of a replica."""
    stages = RankStages(mesh, transport, device)
    replica = Replica(mesh.strategy, transport, placement, precision, peers=stages.peers, part_of=mesh.part_of())
    looks = mesh.stage(transport.rank) == 0
    cutting = CutAtFirstCall(replica, stages, transport, looks=looks, device=device)
    if mesh.strategy == "pipeline":
        return CutModel(replica, cutting, stages, lambda inner: PipelinePass(inner, cutting, stages), is_ordered=True)
    return CutModel(replica, cutting, stages, lambda inner: StagedPass(inner, cutting, stages))


def on_several_devices(
    transport: Transport, placement: Placement, devices: Sequence[torch.device], precision: Precision | None = None
) -> CutModel:
    """Put all stages on each rank, one on each of its devices."""
    stages, replica = DeviceStages(devices), Replica("model_parallel", transport, placement, precision)
    cutting = CutAtFirstCall(replica, stages, transport, looks=transport.rank == 0, device=devices[0])
    return CutModel(replica, cutting, stages, lambda inner: StagedPass(inner, cutting, stages))
