"""Pins each CUDA rank to its device, checks those that the script takes itself, and puts `--backend` in place of its own.

Devices are pinned, never masked: `cuda:1` is the same device in every process of a node, and local rank r has cuda:r. The
backend `samebits` (`samebits.torch_backend`) is imported by the first call that wants it, never before.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from samebits.errors import UsageError
from samebits.machine import torch_private
from samebits.notices import say
from samebits.protocol.backends import backend_for, is_ours
from samebits.protocol.case import Case
from samebits.protocol.environment import Position
from samebits.protocol.late_settings import index_of, ranks_per_gpu
from samebits.protocol.run_folder import RunFolder
from samebits.rank.start.guards.wrapping import INIT, NEW_GROUP, CallByName, put_in_place, when_imported


def guard_devices(position: Position, run_folder: Path) -> None:
    """Install the guard, now or when the script imports torch."""
    when_imported("torch.cuda", lambda cuda: _guard_cuda(cuda, position))
    when_imported("torch.nn.parallel.distributed", lambda module: _guard_models(module, position, run_folder))


def _guard_cuda(cuda: ModuleType, position: Position) -> None:
    original: Callable[[Any], None] = cuda.set_device

    @functools.wraps(original)
    def set_device(device: Any) -> None:
        index = _index(device)
        if index is not None:
            check_device_index(index, position, cuda.device_count())
        original(device)

    cuda.set_device = set_device  # type: ignore[attr-defined]

    def pin() -> None:
        gpus = cuda.device_count()
        if position.local_rank < gpus * ranks_per_gpu(os.environ):
            original(index_of(position.local_rank, gpus))

    # A script that never uses CUDA gets no context, and its own `set_device` comes after this and wins. Torch itself keeps
    # seeds that are set before CUDA starts in the same way.
    torch_private.call_when_cuda_starts(pin)


def _guard_models(module: ModuleType, position: Position, run_folder: Path) -> None:
    wrapper = module.DistributedDataParallel
    original = wrapper.__init__

    @functools.wraps(original)
    def __init__(self: Any, model: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it takes that place
        device = next((parameter.device for parameter in model.parameters()), None)
        if device is not None and device.type == "cuda":
            note = crowded_device(device.index, position, sys.modules["torch"].cuda.device_count())
            if note is not None:
                say(note)
                Case("shared-device", note, (position.rank,)).add_to(RunFolder(run_folder).findings)
        original(self, model, *args, **kwargs)

    wrapper.__init__ = __init__


def _index(device: Any) -> int | None:
    """The index in 1, "cuda:1" or torch.device("cuda", 1); None when there is none."""
    if isinstance(device, int):
        return device
    _, _, number = str(device).partition(":")
    return int(number) if number.isdigit() else None


def check_device_index(index: int, position: Position, gpus: int) -> None:
    """Raise `UsageError` for a device that does not exist among `gpus` devices, with the likely reason."""
    if index < gpus:
        return
    if index == position.rank != position.local_rank:
        raise UsageError(
            f"torch.cuda.set_device({index}) got the global rank, but devices are numbered per node, and this one "
            f"has {gpus}.",
            f'Use int(os.environ["LOCAL_RANK"]), which is {position.local_rank} here.',
        )
    if position.local_world_size > gpus:
        raise UsageError(
            f"torch.cuda.set_device({index}): {position.local_world_size} ranks were started, but torch sees {gpus} "
            f"GPU{'s' if gpus != 1 else ''} here.",
            f"Start {max(gpus, 1)}, or let ranks share GPUs with index % {max(gpus, 1)}.",
        )
    raise UsageError(
        f"torch.cuda.set_device({index}): torch sees {gpus} GPU{'s' if gpus != 1 else ''} here, counted from 0.",
        f'Use int(os.environ["LOCAL_RANK"]), which is {position.local_rank} here.',
    )


def crowded_device(index: int | None, position: Position, gpus: int) -> str | None:
    """A note about a model on device 0 in a rank that has a device of its own; None where all is well."""
    if index != 0 or position.local_rank == 0 or gpus < position.local_world_size:
        return None
    return (
        f"rank {position.rank}: the model is on cuda:0, which local rank 0 uses too, while cuda:{position.local_rank} "
        f"is free. Use .cuda() without an index, or .to(f\"cuda:{{os.environ['LOCAL_RANK']}}\")."
    )


OUR_BACKEND = "samebits.torch_backend"
"""By name, because that module belongs inside a rank."""


def guard_backends(wanted: str, device: str) -> None:
    """Install the guard, now or when the script imports torch.distributed; `wanted` is from the command line, or empty."""

    def install(c10d: ModuleType) -> None:
        for name in ("init_process_group", "new_group"):
            put_in_place(c10d, name, _guarded(name, getattr(c10d, name), wanted, device))

    when_imported("torch.distributed.distributed_c10d", install)


def _guarded(name: str, original: Callable[..., Any], wanted: str, device: str) -> Callable[..., Any]:
    is_first = name == "init_process_group"
    call = CallByName(original, INIT if is_first else NEW_GROUP)

    @functools.wraps(original)
    def with_backend(*args: Any, **kwargs: Any) -> Any:
        try:
            requested = call.look(args, kwargs).get("backend")
        except TypeError:
            # Torch says what is wrong.
            return original(*args, **kwargs)
        # A new group without a backend has that of the first one.
        if requested is not None or is_first:
            requested = backend_for(requested, wanted, device)
            args, kwargs = call.change(args, kwargs, {"backend": requested})
        if is_ours(requested):
            importlib.import_module(OUR_BACKEND)
        return original(*args, **kwargs)

    return with_backend
