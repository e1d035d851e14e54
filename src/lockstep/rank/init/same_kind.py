"""Ranks that nobody told their device agree on its kind before they meet: over Gloo one would wait for what others send over NCCL.

`lockstep run` decides for all ranks, so this is for torchrun, srun and mpirun: on one of two nodes the driver may be missing.
"""

from __future__ import annotations

import datetime as dt
from contextlib import suppress

import torch
from torch.distributed.distributed_c10d import Store

from lockstep.errors import UsageError
from lockstep.protocol.environment import Position

HEARING = dt.timedelta(seconds=5)


def check_same_kind(store: Store, position: Position, device: torch.device) -> None:
    """Wait for the others. Collective: call it on every rank.

    Raises:
        UsageError: on every rank, where some have a GPU and others compute on the CPU.
    """
    store.add("lockstep ranks on GPUs", int(device.type == "cuda"))
    if store.add("lockstep ranks with a device", 1) == position.world_size:
        store.set("lockstep devices", "")
    store.wait(["lockstep devices"])
    on_gpus = store.add("lockstep ranks on GPUs", 0)
    if store.add("lockstep ranks that know", 1) == position.world_size:
        store.set("lockstep all know", "")
    if 0 < on_gpus < position.world_size:
        with suppress(RuntimeError):  # the store may end with rank 0
            store.wait(["lockstep all know"], HEARING)
        mine = "a GPU" if device.type == "cuda" else "the CPU"
        raise UsageError(
            f"Rank {position.rank} would compute on {mine}, but {on_gpus} of {position.world_size} ranks have a GPU.",
            'Try `lockstep doctor` on each node, or say device="cpu".',
        )
