"""Why a rank that may choose its device computes on the CPU although there is an accelerator: it is never silent about that.

Used are CUDA devices, which ROCm's are to torch. Others (MPS, XPU) are named: streams, seeds and deterministic kernels of a
rank are those of CUDA.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from lockstep.machine.no_gpu import NoGpu, ask_why, first_sentence, why_none
from lockstep.notices import say
from lockstep.protocol.environment import Position

_said: list[str] = []
"""What this process has said."""


def tell_why_cpu(variables: Mapping[str, str], position: Position) -> None:
    """Say it once in a process, and on each node once."""
    if position.local_rank == 0 and (why := why_cpu(variables, position)) and why not in _said:
        _said.append(why)
        say(why)


def why_cpu(variables: Mapping[str, str], position: Position) -> str:
    """What to say; empty if there is nothing that could be used, or it was hidden on purpose.

    Args:
        variables: the environment.
        position: the rank's, on a node whose ranks have no device each.
    """
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
        return f'There is an accelerator of the kind {other.type!r}, but lockstep trains on "cpu" and "cuda". The CPU computes.'
    return why_none(variables, ask=_words).in_python.note


def no_device(variables: Mapping[str, str]) -> NoGpu:
    """Why `device="cuda"` cannot be, where torch sees no GPU."""
    return why_none(variables, ask=_words).in_python


def _words(variables: Mapping[str, str]) -> str:
    """Torch's own words in this process, which has asked the driver already."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return first_sentence(str(error).partition("\n")[0])
    return ask_why(variables)
