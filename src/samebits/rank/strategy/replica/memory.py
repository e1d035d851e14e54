"""The memory for parameters: where it comes from, and whether it is this rank's alone."""

from __future__ import annotations

import mmap
import time
from collections.abc import Sequence

import torch
from torch import Tensor

HUGE_PAGE = 2 << 20
"""Bytes."""

# [Note: huge pages that come slowly]
# A virtual machine may give free memory back to its host, in huge pages. One that is used again then costs 4 to 8 ms, where 512
# small ones, which the machine still has, cost 1 to 2 ms: 500 MB took 1.8 s instead of 0.3. On other machines a huge page
# costs 0.1 to 0.3 ms.
USUAL_S, PATIENCE_S = 1e-3, 20e-3
"""What a huge page may cost on average, and what all may cost beyond that, before the rest comes in small ones."""


def private_zeros(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Make a 1-D tensor of zeros in this process's own memory, with its own storage."""
    num_bytes = size * dtype.itemsize
    if device.type == "cpu" and num_bytes >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            return _huge(num_bytes).view(dtype)
        except OSError:
            # A kernel without huge pages, or too little memory, which torch reports better.
            pass
    return torch.zeros(size, dtype=dtype, device=device)


def _huge(num_bytes: int) -> Tensor:
    """Map zeroed bytes that begin at the start of a huge page, in huge pages as long as these come quickly."""
    memory = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    before = -torch.frombuffer(memory, dtype=torch.uint8).data_ptr() % HUGE_PAGE
    memory.madvise(mmap.MADV_HUGEPAGE)
    began = time.perf_counter()
    for number, begin in enumerate(range(before, before + num_bytes, HUGE_PAGE)):
        # The kernel makes the page now.
        memory[begin] = 0
        if time.perf_counter() - began > PATIENCE_S + number * USUAL_S:
            # [Note: huge pages that come slowly]
            memory.madvise(mmap.MADV_NOHUGEPAGE)
            break
    return torch.frombuffer(memory, dtype=torch.uint8, count=num_bytes, offset=before)


class ParameterMemory:
    """Memory of this rank's own. Other kinds are shared, so each method says who must call it."""

    is_ours = True
    """Whether only this rank's script and its transport's updates write to it. If others may at any time, values are
    not compared, buffers are left alone, and the model must keep its form."""

    def allocate(self, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Make 1-D zeros to hold parameters. Collective: call it on every rank."""
        return private_zeros(size, dtype, device)

    def master(self, flat: Tensor) -> Tensor:
        """Where an update writes the parameters in `flat`, which `allocate` made: a tensor like it."""
        return flat

    def keep(self, flats: Sequence[Tensor]) -> None:
        """Keep only `flats` of what `allocate` made, as they hold parameters. Collective: call it on every rank."""

    def publish(self) -> None:
        """Publish equal parameters, put into what `allocate` made. Collective: call it on every rank."""
