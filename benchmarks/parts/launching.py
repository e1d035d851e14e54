"""From the command to the last rank's first all_reduce, and to the end of a first step: `lockstep run` against torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.rank_program import ROOT
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


def measure_first_step(model: str, rounds: int) -> list[Line]:
    """The same model in our loop under `lockstep run`, and in DDP under torchrun: all of it, and what prepares the model."""
    program = ["-m", "benchmarks.in_rank.first_step", "--model", model, "--side"]
    options = ["-q", "-n", "2", "--lanes", "2", "--device", "cpu", "--threads", "1"]
    ours = ["-m", "lockstep", "run", *options, *program, "lockstep"]
    other = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *program, "ddp"]
    found = [(_first_step(ours), _first_step(other)) for _ in range(rounds)]
    return [
        compare(
            Aim(row, f"{what}, {model}, 2 ranks", goal),
            ("lockstep run", [one[at] for one, _ in found]),
            ("torchrun's DDP", [one[at] for _, one in found]),
        )
        for at, (row, what, goal) in enumerate((("D5", "run.prepare", 1 / 1.2), ("", "launch to a first step", 0.0)))
    ]


def _first_step(command: list[str]) -> tuple[int, int]:
    """Nanoseconds that preparing took, and from the command to the step's end."""
    with tempfile.TemporaryDirectory() as folder:
        to = Path(folder) / "noted.json"
        started = time.monotonic_ns()
        _run([sys.executable, *command, "--to", to], LOCKSTEP_RUNS=folder)
        noted = json.loads(to.read_text())
        return noted["prepare_ns"], noted["ended_ns"] - started


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


def _run(command: list[object], **variables: str) -> None:
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=ROOT, env={**_environment(), **variables}, check=False, capture_output=True, text=True, timeout=TIMEOUT_S
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stderr}")
