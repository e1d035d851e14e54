"""What makes one lane's bits repeatable on one machine: threads, deterministic kernels, no choice of kernels by timing.

Under numerics="fast" only the threads are set: the backends choose their kernels, by timing where they can.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from torch.utils import deterministic

from lockstep.machine.torch_private import if_imported
from lockstep.notices import say
from lockstep.protocol import cublas_workspace

ENVIRONMENT = (cublas_workspace.NAME, "TORCHINDUCTOR_DETERMINISTIC", "PYTHONHASHSEED")
"""Variables that libraries read; PYTHONHASHSEED is set by `lockstep run`."""

ROUNDED = ("cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn")
"""Whose kernels may round float32 operands to TF32 or bfloat16: torch's new names, which show what was set by the old ones;
to read the old ones raises once a script has used the new."""

MOST_COMPILED = 64
"""How many times one function is compiled, for different sizes; torch's own limit is 8."""
MOST_NAMED = 4
"""Ranks of one device in a sentence."""


def set_numerics(threads: int, *, exact: bool = True) -> None:
    """Set this process's threads and turn deterministic kernels on or off. Call before the first operation.

    An operation without a deterministic form raises when it is called; torch names it. Buffers are not filled with NaN,
    as torch's switch would do, because that costs time.
    """
    torch.set_num_threads(threads)
    # use_deterministic_algorithms would import the compiler: two seconds
    torch.set_deterministic_debug_mode("error" if exact else "default")
    torch.backends.cudnn.deterministic = exact
    torch.backends.cudnn.benchmark = not exact
    os.environ["TORCHINDUCTOR_DETERMINISTIC"] = "1" if exact else "0"
    if (inductor := if_imported("inductor_settings")) is not None:
        inductor.deterministic = exact
    if exact:
        if cublas_workspace.IS_LATE:
            say(cublas_workspace.TOO_LATE)
        deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def flags() -> dict[str, Any]:
    """Every setting of this process that decides how kernels round, by its name in torch; for the record."""
    dynamo = if_imported("compiler_settings")
    return {
        "torch.deterministic_debug_mode": torch.get_deterministic_debug_mode(),
        "cudnn.deterministic": torch.backends.cudnn.deterministic,
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        **{f"{name}.fp32_precision": attrgetter(f"{name}.fp32_precision")(torch.backends) for name in ROUNDED},
        "dynamo.automatic_dynamic_shapes": None if dynamo is None else dynamo.automatic_dynamic_shapes,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        **{name: os.environ.get(name) for name in ENVIRONMENT},
    }


def set_compiler() -> None:
    """Keep a lane's bits under `torch.compile` independent of earlier lanes; call it again once torch is imported further.

    Automatic dynamic shapes would compile a second size differently on a rank that saw another size first. Each of the
    few lane sizes (full, larger, partial; training and evaluation) is compiled separately instead. Past `MOST_COMPILED`
    of them torch would compute without the compiler, from a step on that depends on the lanes that a rank carries; it
    raises instead (see `torch_words.mistake_in`). torch's optimizers and torch.compile import the compiler; without it
    nothing is compiled.
    """
    config = if_imported("compiler_settings")
    if config is None or (config.fail_on_recompile_limit_hit and not config.automatic_dynamic_shapes):
        return
    config.automatic_dynamic_shapes = False
    config.fail_on_recompile_limit_hit = True
    config.recompile_limit = max(config.recompile_limit, MOST_COMPILED)


def device_name(device: torch.device) -> str:
    """`NVIDIA H200`, or `cpu`."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def unlike_devices(names: Sequence[str]) -> str:
    """What to say where ranks compute on different devices, by the name of each rank's; empty where all are alike."""
    if len(set(names)) < 2:
        return ""
    told = []
    for name in dict.fromkeys(names):
        ranks = [str(rank) for rank, other in enumerate(names) if other == name]
        more = [f"{len(ranks) - MOST_NAMED} more"] if len(ranks) > MOST_NAMED else []
        told.append(f"{name} on rank{'s' if len(ranks) > 1 else ''} {', '.join([*ranks[:MOST_NAMED], *more])}")
    return (
        f"the ranks' devices differ, and bits depend on them: {'; '.join(told)}. On devices of one kind they are equal."
    )


def unlike_hashes(hashes: Sequence[int]) -> str:
    """What to say where Python hashes strings in another way on each rank, by each rank's hash of one; else empty."""
    if len(set(hashes)) < 2:
        return ""
    return (
        "strings hash differently on the ranks, so a set of them has another order on each, and bits may depend on it: start "
        "every rank with PYTHONHASHSEED=0, as `lockstep run` does."
    )


def fingerprint(device: torch.device, threads: int) -> dict[str, Any]:
    """What the bits depend on besides the script and its data."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "device": device_name(device),
        "threads": threads,
    }
