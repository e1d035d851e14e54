"""torch's own random generators of this process: the CPU's, and those of its GPUs once one of them is in use."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor


def gpu_generators() -> Sequence[Generator]:
    """One for each GPU that this process may use; a module may span several. None before CUDA is initialised."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return ()
    return tuple(torch.cuda.default_generators)


def generators() -> Sequence[Generator]:
    """All of them; the CPU's is the first."""
    return (torch.default_generator, *gpu_generators())


def states() -> list[Tensor]:
    """Where each stands, as tensors of the CPU. No device is waited for."""
    return [generator.get_state() for generator in generators()]
