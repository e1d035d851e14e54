"""Memory of all ranks together after some steps with AdamW (C14): the sum of their proportional set sizes (PSS).

PSS divides what processes share by their number, so shared memory counts once. Stock DDP is measured under torchrun,
and under `lockstep run` too, where the ranks share torch's own pages because they are forks of one process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.rank_program import ROOT, measure_in_ranks
from benchmarks.summary import Aim, Line, Unit, compare

GOAL = 1.5
TIMEOUT_S = 300
NO_RESTARTS = ("--max-restarts", "0")
"""So that no rank is replaced: otherwise each keeps what it gave to a sum until the sum is everywhere."""
COPIES_OF_STATE = 4
"""Parameters, gradients and AdamW's two moments."""


def measure_memory() -> list[Line]:
    """`ddp` and `zero1` of ours beside DDP, for one large MLP on two ranks."""
    stock = {
        "DDP, lockstep run": measure_in_ranks("memory", 2, ["--side", "stock"]),
        "DDP, torchrun": _torchrun(),
    }
    ours = {
        f"{strategy}{said}": measure_in_ranks("memory", 2, ["--side", "ours"], ["--strategy", strategy, *options])
        for strategy in ("ddp", "zero1")
        for said, options in (("", ()), (" " + " ".join(NO_RESTARTS), NO_RESTARTS))
    }
    return [
        compare(
            Aim(
                "C14",
                f"memory, {told['parameters'] / 1e6:.0f} M parameters",
                GOAL if strategy.startswith("zero1") else 0.0,
            ),
            (strategy, [told["pss_bytes"]]),
            (name, [other["pss_bytes"]]),
            ("one copy of all state", [told["parameters"] * 4 * COPIES_OF_STATE]),
            Unit.BYTES,
        )
        for strategy, told in ours.items()
        for name, other in stock.items()
    ]


def _torchrun() -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "measured.json"
        command = [Path(sys.executable).parent / "torchrun", "--standalone", "--nproc-per-node", 2]
        command += ["-m", "benchmarks.in_rank.memory", "--side", "stock", "--to", target]
        subprocess.run(
            [str(word) for word in command],
            cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, capture_output=True, timeout=TIMEOUT_S,
        )  # fmt: skip
        told: dict[str, float] = json.loads(target.read_text())
        return told
