"""What makes one lane's bits repeatable on one machine: threads, deterministic kernels, no choice of kernels by timing."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

import torch
from torch.utils import deterministic


def set_exact_numerics(threads: int) -> None:
    """Set this process's threads and switch to deterministic kernels. Call before the first operation.

    An operation without a deterministic form raises when it is called; torch names it. Buffers are not filled with NaN,
    which torch's switch would do and which costs time.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_num_threads(threads)
    torch.set_deterministic_debug_mode("error")  # use_deterministic_algorithms would import the compiler: two seconds
    os.environ.setdefault("TORCHINDUCTOR_DETERMINISTIC", "1")
    if "torch._inductor.config" in sys.modules:
        sys.modules["torch._inductor.config"].deterministic = True  # type: ignore[attr-defined]
    deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False


def set_compiler(num_lanes: int) -> None:
    """Keep `torch.compile` from changing a lane's bits by which lanes came before; call when an optimizer exists.

    Automatic dynamic shapes would compile a second size differently on a rank that saw another size first. Each of the
    few lane sizes (full, larger, partial; training and evaluation) is compiled by itself instead. torch's optimizers
    have imported the compiler; without it nothing is compiled.
    """
    config: Any = sys.modules.get("torch._dynamo.config")
    if config is not None:
        config.automatic_dynamic_shapes = False
        config.recompile_limit = max(config.recompile_limit, num_lanes + 8)


def fingerprint(device: torch.device, threads: int) -> dict[str, Any]:
    """What, besides the script and its data, the bits depend on."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": threads,
    }
