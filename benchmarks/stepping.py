"""Starts the ranks that compare training steps, and reads what they measured."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.summary import Line, compare
from benchmarks.workloads import WORKLOADS

TIMEOUT_S = 900
ROOT = Path(__file__).parents[1]


def measure_steps(workload: str, num_ranks: int, rounds: int) -> Line:
    """One workload on `num_ranks` ranks, one lane each: against the best DDP, or alone against the bare loop.

    Exits when the gradients of the sides differ.
    """
    times = _times(workload, num_ranks, rounds)
    ours = times.pop("lockstep")
    what = WORKLOADS[workload].what
    if num_ranks == 1:
        bare = times.pop("bare loop")
        return compare(f"alone: {what}", ours, ("bare loop", bare), ("bare loop", bare))
    limit = times.pop("no exchange")
    best = min(times, key=lambda name: sorted(times[name])[len(times[name]) // 2])
    return compare(what, ours, (best, times[best]), ("no exchange", limit))


def _times(workload: str, num_ranks: int, rounds: int) -> dict[str, list[int]]:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "times.json"
        launch = [Path(sys.executable).parent / "lockstep", "run", "-q", "--log-dir", folder, "-n", num_ranks]
        launch += ["--threads", 1, "--lanes", num_ranks, "--device", "cpu", "-m", "benchmarks.in_rank"]
        options = ["--workload", workload, "--rounds", rounds, "--to", target]
        done = subprocess.run(
            [str(word) for word in (*launch, *options)],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        if done.returncode:
            raise SystemExit(f"{workload} on {num_ranks} ranks failed:\n{done.stdout}{done.stderr}")
        measured: dict[str, list[int]] = json.loads(target.read_text())["times_ns"]
        return measured
