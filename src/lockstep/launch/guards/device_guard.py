"""Pins each CUDA rank to its device, and checks the devices that the script takes itself.

Pinning waits until CUDA is initialised, so a script that never uses it has no context; `set_device` in
the script comes after and wins. Nothing here runs in CPU ranks.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from lockstep import torch_private
from lockstep.handover.case import Case
from lockstep.handover.environment import Position
from lockstep.handover.gpu_sharing import index_of, ranks_per_gpu
from lockstep.handover.run_folder import RunFolder
from lockstep.launch.guards.after_import import when_imported
from lockstep.launch.guards.device_rules import check_device_index, crowded_device
from lockstep.notices import say


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

    torch_private.call_when_cuda_starts(pin)  # as torch itself keeps seeds that are set before CUDA is initialised


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
