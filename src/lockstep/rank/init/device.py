"""The device of a rank. Devices are pinned, not masked: `cuda:0` means the same in every process.

Each rank has a device of its own, unless the user lets ranks share one (`protocol.gpu_sharing`).
"""

from __future__ import annotations

import os

import torch

from lockstep.errors import UsageError
from lockstep.protocol.environment import Position
from lockstep.protocol.gpu_sharing import how_to_share, index_of
from lockstep.rank.init.idle_gpu import no_device


def pin_device(kind: str | None, position: Position, most_ranks: int = 1) -> torch.device:
    """Choose the rank's device and make it the process's default for CUDA.

    Args:
        kind: "cpu", "cuda", or None: CUDA where there is a GPU for every rank of this node, else the CPU.
        position: the rank's on its node.
        most_ranks: how many ranks may share a device.

    Raises:
        UsageError: when a GPU is asked for and there is none for this rank, or ranks of several nodes would share one.
    """
    local_world_size = position.local_world_size
    num_devices = torch.cuda.device_count() if kind != "cpu" and torch.cuda.is_available() else 0
    if kind not in (None, "cpu", "cuda"):
        raise UsageError(f'`device` must be "cpu" or "cuda", but is {kind!r}.', "Leave it out to let lockstep choose.")
    if kind == "cuda" and not num_devices:
        raise UsageError(*no_device(os.environ)[:2])
    if kind == "cuda" and local_world_size > num_devices * most_ranks:
        raise UsageError(
            f"{local_world_size} ranks need one GPU each, but torch sees {num_devices}.",
            f"Start with -n {num_devices}, or with --device cpu. {how_to_share(local_world_size, num_devices)}.",
        )
    if kind == "cpu" or local_world_size > num_devices * most_ranks:
        return torch.device("cpu")
    if local_world_size > num_devices and local_world_size < position.world_size:
        raise UsageError(
            f"Ranks can share a GPU on one node only, but {local_world_size} of {position.world_size} are on this one, "
            f"which has {num_devices}.",
            f"Start {num_devices} here, or with --device cpu.",
        )
    torch.cuda.init()  # type: ignore[no-untyped-call]  # makes the device's generators, which are seeded before anything runs there
    index = index_of(position.local_rank, num_devices)
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def is_shared(device: torch.device, position: Position) -> bool:
    """Whether ranks of this node share GPUs, which NCCL refuses."""
    return device.type == "cuda" and position.local_world_size > torch.cuda.device_count()
