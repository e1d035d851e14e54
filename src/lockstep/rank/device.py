"""The device of a rank. Devices are pinned, not masked: `cuda:0` means the same in every process."""

from __future__ import annotations

import os

import torch

from lockstep.errors import UsageError
from lockstep.rank.idle_gpu import no_device


def pin_device(kind: str | None, local_rank: int, local_world_size: int) -> torch.device:
    """Choose the rank's device and make it the process's default for CUDA.

    Args:
        kind: "cpu", "cuda", or None: CUDA where there is a GPU for every rank of this node, else the CPU.
        local_rank: the rank on this node.
        local_world_size: the number of ranks on this node.

    Raises:
        UsageError: when a GPU is asked for and there is none for this rank.
    """
    num_devices = torch.cuda.device_count() if kind != "cpu" and torch.cuda.is_available() else 0
    if kind not in (None, "cpu", "cuda"):
        raise UsageError(f'`device` must be "cpu" or "cuda", but is {kind!r}.', "Leave it out to let lockstep choose.")
    if kind == "cuda" and not num_devices:
        raise UsageError(*no_device(os.environ)[:2])
    if kind == "cuda" and local_world_size > num_devices:
        raise UsageError(
            f"{local_world_size} ranks need one GPU each, but torch sees {num_devices}.",
            f"Start with -n {max(num_devices, 1)}, or with --device cpu.",
        )
    if kind == "cpu" or local_world_size > num_devices:
        return torch.device("cpu")
    torch.cuda.init()  # type: ignore[no-untyped-call]  # makes the device's generators, which are seeded before anything runs there
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)
