"""The device of a rank, and the host memory that it keeps.

Devices are pinned, not masked: `cuda:0` means the same in every process. Each rank has a device of its own, unless the
user lets ranks share one.
"""

from __future__ import annotations

import ctypes
import datetime as dt
import os
from collections.abc import Mapping
from contextlib import suppress

import torch
from torch.distributed.distributed_c10d import Store

from samebits.errors import UsageError
from samebits.machine.no_gpu import ask_why, first_sentence, why_none
from samebits.notices import say
from samebits.protocol.environment import Position
from samebits.protocol.late_settings import how_to_share, index_of

_notices: list[str] = []
"""Notices that this process has printed."""


def explain_cpu(variables: Mapping[str, str], position: Position) -> None:
    """Say it once in a process, and on each node once."""
    if position.local_rank == 0 and (why := why_cpu(variables, position)) and why not in _notices:
        _notices.append(why)
        say(why)


def why_cpu(variables: Mapping[str, str], position: Position) -> str:
    """What to say where a node's ranks have no device each; empty if there is none to use, or it was hidden on purpose."""
    ranks = position.local_world_size
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus:
        if gpus >= ranks:
            return ""
        sees = "torch sees only one GPU" if gpus == 1 else f"torch sees only {gpus} GPUs"
        hint = " (does each rank's CUDA_VISIBLE_DEVICES or --gpus-per-task name its own?)" if gpus == 1 else ""
        return (
            f"{ranks} ranks compute on the CPU: {sees} here{hint}. Start at most {gpus}, show all GPUs of a node to each of its "
            'ranks, or say device="cpu".'
        )
    other = torch.accelerator.current_accelerator(check_available=True)
    if other is not None and other.type != "cuda":
        return f'There is an accelerator of the kind {other.type!r}, but samebits trains on "cpu" and "cuda". The CPU computes.'
    return why_none(variables, ask=_words).in_python.note


def _words(variables: Mapping[str, str]) -> str:
    """Torch's own words in this process, which has asked the driver already."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return first_sentence(str(error).partition("\n")[0])
    return ask_why(variables)


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
        raise UsageError(f'`device` must be "cpu" or "cuda", but is {kind!r}.', "Leave it out to let samebits choose.")
    if kind == "cuda" and not num_devices:
        raise UsageError(*why_none(os.environ, ask=_words).in_python[:2])
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
    # Makes the device's generators, which are seeded before anything runs there.
    torch.cuda.init()  # type: ignore[no-untyped-call]
    index = index_of(position.local_rank, num_devices)
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def is_shared(device: torch.device, position: Position) -> bool:
    """Whether ranks of this node share GPUs, which NCCL refuses."""
    return device.type == "cuda" and position.local_world_size > torch.cuda.device_count()


HEARING = dt.timedelta(seconds=5)


def check_same_kind(store: Store, position: Position, device: torch.device) -> None:
    """Wait for the others. Collective: call it on every rank.

    Raises:
        UsageError: on every rank, where some have a GPU and others compute on the CPU.
    """
    # The last rank to come writes the key that all wait for. Rank 0 may serve the store, so it leaves after all have read.
    store.add("samebits ranks on GPUs", int(device.type == "cuda"))
    if store.add("samebits ranks with a device", 1) == position.world_size:
        store.set("samebits devices", "")
    store.wait(["samebits devices"])
    on_gpus = store.add("samebits ranks on GPUs", 0)
    if store.add("samebits ranks that know", 1) == position.world_size:
        store.set("samebits all know", "")
    if 0 < on_gpus < position.world_size:
        # The store may end with rank 0.
        with suppress(RuntimeError):
            store.wait(["samebits all know"], HEARING)
        mine = "a GPU" if device.type == "cuda" else "the CPU"
        raise UsageError(
            f"Rank {position.rank} would compute on {mine}, but {on_gpus} of {position.world_size} ranks have a GPU.",
            'Try `samebits doctor` on each node, or say device="cpu".',
        )


# [Note: memory that a step frees is kept for the next one]
# glibc gives freed blocks back to the kernel: those of 32 MiB and more at once, others when enough of them are at the end
# of the heap. A step frees its gradients and activations and asks for them again, so each page is zeroed and mapped anew:
# 38.9 ms against 23.0 for a step of an MLP with 10.5 M parameters, with the same peak (torch 2.13, one thread).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Parameters of `mallopt`, from malloc.h."""
# [Note: large blocks are not kept]
# Blocks of this size and more are still mapped one by one and given back at once, as glibc does by default.
# Kept, they doubled the memory of a model whose layers have 64 MiB.
MAPPED_BYTES = 32 << 20
NEVER = (1 << 31) - 1

_USERS_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")


def give_back_freed_memory() -> None:
    """Give free memory back to the kernel, once: after the first steps it is what making the model left behind.

    2 ranks, MLP of 10 M parameters: 1345 MiB of heap with 641 in use became 546. Does nothing without glibc.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def keep_freed_memory() -> bool:
    """Let this process's allocator keep freed memory; whether it does.

    False if the C library is not glibc, or if its variables are set: then somebody has chosen.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in os.environ for name in _USERS_OWN):
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES)) and bool(mallopt(M_TRIM_THRESHOLD, NEVER))
