"""From the command to the last rank's first all_reduce: `lockstep run` against torchrun, with the same plain script."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.summary import Aim, Line, compare

SCRIPT = Path(__file__).parents[1] / "in_rank" / "first_all_reduce.py"
TIMEOUT_S = 120
GOALS = {2: 1.9, 8: 4.5}


def measure_launch(num_ranks: int, rounds: int) -> list[Line]:
    """Launch with both, in turn; the limit is one Python that imports torch."""
    bin_folder = Path(sys.executable).parent
    ours, torchrun, limit = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        runs = [bin_folder / "lockstep", "run", "-q", "--threads", "1", "--log-dir", folder, "-n", str(num_ranks)]
        other = [bin_folder / "torchrun", "--standalone", "--nproc-per-node", str(num_ranks)]
        for _ in range(rounds):
            ours.append(_until_all_reduce([*runs, SCRIPT], num_ranks))
            torchrun.append(_until_all_reduce([*other, SCRIPT], num_ranks))
            limit.append(_until_end([sys.executable, "-c", "import torch"]))
    aim = Aim("C10", f"launch, {num_ranks} ranks", GOALS[num_ranks])
    return [compare(aim, ("lockstep run", ours), ("torchrun", torchrun), ("import torch", limit))]


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def _until_all_reduce(command: list[object], num_ranks: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic_ns()
        _run([*command, folder])
        ends = [int(file.read_text()) for file in Path(folder).iterdir()]
    if len(ends) != num_ranks:
        raise SystemExit(f"{command} came to {len(ends)} of {num_ranks} all_reduces")
    return max(ends) - started


def _until_end(command: list[object]) -> int:
    started = time.monotonic_ns()
    _run(command)
    return time.monotonic_ns() - started


def _run(command: list[object]) -> None:
    subprocess.run(
        [str(word) for word in command],
        env=_environment(), check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=TIMEOUT_S
    )  # fmt: skip
