"""How long a step stands still for a state, beside `torch.save`, DCP's `async_save` and a bare copy of the same bytes."""

from __future__ import annotations

from benchmarks.rank_program import measure_in_ranks
from benchmarks.summary import Aim, Line, compare

GPT_M = 124
"""GPT-2's smallest; the others are stacks of layers."""
SIZES = ((10, 1), (GPT_M, 1), (10, 2), (GPT_M, 2))
"""Millions of float32 parameters, with AdamW: 12 bytes each are saved; and ranks, under ddp."""
BYTES_EACH = 50
"""Memory that the measurement needs for each parameter: the state, its gradients, and a copy for each side."""
OURS, NOW, COPY = "automatic state", "run.save_state", "memcpy"


def measure_saving(size_m: int, num_ranks: int, rounds: int) -> list[Line]:
    """Ranks save their state in turn in each way; a line for each other way, with the bare copy as the limit.

    Sides that do not work here are left out. No lines where the memory does not suffice.
    """
    times = measure_in_ranks("saving", num_ranks, ["--millions", size_m, "--rounds", rounds])["times_ns"]
    copy = times.pop(COPY, None)
    if copy is None:
        return []
    ours = (OURS, times.pop(OURS))
    aim = Aim("S1", f"standing still for a state, {size_m} M parameters, ranks: {num_ranks}")
    return [compare(aim, ours, other, (COPY, copy)) for other in times.items()]
