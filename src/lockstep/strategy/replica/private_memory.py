"""Zeroed memory of one process, in huge pages where the kernel has some: fewer TLB misses.

On one rank this more than halves the engine's cost: with parameters in pages of 4 KiB, a step of an MLP of 10.5 M
parameters took 1.045 times as long as in the bare loop; in huge pages, 1.02 times.
"""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20
"""Bytes."""


def private_zeros(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Make a 1-D tensor of zeros in this process's own memory, with its own storage."""
    num_bytes = size * dtype.itemsize
    if device.type == "cpu" and num_bytes >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            return _huge(num_bytes).view(dtype)
        except OSError:  # a kernel without huge pages, or too little memory, which torch reports better
            pass
    return torch.zeros(size, dtype=dtype, device=device)


def _huge(num_bytes: int) -> Tensor:
    """Map zeroed bytes that begin at the start of a huge page."""
    memory = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    before = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % HUGE_PAGE
    return torch.frombuffer(memory, dtype=torch.uint8, count=num_bytes, offset=before)
