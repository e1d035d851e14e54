"""What lies in the memory of this rank's GPU, for whoever reads that it is used up."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from lockstep.notices import say
from lockstep.protocol.journal import device_words
from lockstep.rank.init.device import is_shared
from lockstep.rank.run.run_state import RunState

MUCH = 0.25
"""A share of the memory that other programs take, above which they are told. A screen takes less."""


def held(run: RunState) -> dict[str, int]:
    """Bytes on the rank's device by what they are. What a lane's forward keeps is in the rest."""
    device, progress = run.setup.device, run.progress
    optimizers = [one for one in progress.taken if isinstance(one, Optimizer)]
    states = [values for optimizer in optimizers for values in optimizer.state.values()]
    parts = {
        "parameters": _bytes((one for model in progress.models for one in model.parameters()), device),
        "gradients": run.machinery.strategy.gradient_bytes,
        device_words.STATE: _bytes((value for values in states for value in values.values()), device),
    }
    rest = torch.cuda.memory_allocated(device) - sum(parts.values())
    return parts | {device_words.REST: max(rest, 0)}


def _bytes(values: Iterable[object], device: torch.device) -> int:
    """The memory below tensors on the device, each piece once."""
    storages = [one.untyped_storage() for one in values if isinstance(one, Tensor) and one.device == device]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def watch_device(run: RunState) -> None:
    """From now on errors of the device are told with what lies there."""
    device = run.setup.device
    device_words.present[:] = [device_words.Device(str(device), lambda: held(run))] if device.type == "cuda" else []
    if device.type != "cuda" or is_shared(device, run.setup.environment.position):
        return
    if told := taken_by_others(*torch.cuda.mem_get_info(device), device):
        say(told)


def taken_by_others(free: int, total: int, device: torch.device) -> str:
    """What to say where another program has much of the memory; empty where none has. Ask before the run has any itself."""
    taken = total - free - torch.cuda.memory_reserved(device)
    if taken < MUCH * total:
        return ""
    return (
        f"{taken / device_words.GIB:.1f} of {total / device_words.GIB:.1f} GiB of {device} are taken by another program: "
        "`nvidia-smi` names it, and CUDA_VISIBLE_DEVICES chooses another GPU."
    )
