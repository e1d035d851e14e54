"""Adding up gradients and updating parameters, without a model around them (C7)."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.bare import build
from benchmarks.cases import GLOO, LIMITS
from benchmarks.rank_program import measure_in_ranks
from benchmarks.summary import Aim, Line, best, compare

SIZES_M = (10, 25, 50)
"""Millions of float32 parameters."""
GOAL = 3.0
ZERO1 = "zero1"


def measure_update(size_m: int, rounds: int) -> list[Line]:
    """`zero1` beside Gloo's all_reduce and fused AdamW on two ranks. Exits when the parameters differ afterwards.

    The limit is a copy that touches as many bytes as both ranks together must touch in shared memory.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = ["--millions", size_m, "--rounds", rounds, "--bare", build(Path(folder))]
        times = measure_in_ranks("update", 2, options, ["--strategy", "zero1"])["times_ns"]
    gloo = best({name: of for name, of in times.items() if name.startswith(GLOO)})
    copy = best({name: times[name] for name in LIMITS})
    aim = Aim("C7", f"reduce and AdamW, {size_m} M parameters", GOAL)
    return [compare(aim, (ZERO1, times[ZERO1]), (gloo, times[gloo]), (copy, times[copy]))]
