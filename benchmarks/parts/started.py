"""Steps of programs as people start them, one program at a time: ours by `lockstep run`, DDP by torchrun, a bare loop by python.

`steps` and `alone` have all sides in the same processes, which is the fairest to what they compute and gives the others
what `lockstep run` sets up: its allocator's settings, and no page faults in each step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.in_rank.contestants import BUCKET_CAPS_MIB, bucketed
from benchmarks.rank_program import ROOT
from benchmarks.summary import Aim, Line, best, compare
from benchmarks.workloads import WORKLOADS

STEPS = 40
"""Of each program, after its first ones."""
TIMEOUT_S = 600
PROGRAM = "benchmarks.in_rank.started"

Command = Sequence[object]


def measure_started(workload: str, num_ranks: int, rounds: int) -> list[Line]:
    """One workload on one or two ranks, one lane each. A round starts every program once, and takes its median step."""
    if num_ranks == 1:
        ours, others = {"single": _ours("single", 1)}, {"bare loop": [sys.executable, "-m", PROGRAM, "--side", "bare"]}
        row = "C8"
    else:
        ours = {name: _ours(name, num_ranks) for name in ("ddp", "zero1")}
        others = {bucketed("DDP", cap): [*_torchrun(num_ranks), "--bucket-cap", cap] for cap in BUCKET_CAPS_MIB}
        row = "C6"
    found = _rounds({**ours, **others}, workload, rounds)
    name = best({name: found[name] for name in others})
    aim = Aim(row, f"started: {WORKLOADS[workload].what}", 1.0)
    return [compare(aim, (side, found[side]), (name, found[name])) for side in ours]


def _ours(strategy: str, num_ranks: int) -> Command:
    options = ["-n", num_ranks, "--lanes", num_ranks, "--strategy", strategy, "--threads", 1, "--device", "cpu"]
    return [sys.executable, "-m", "lockstep", "run", "-q", *options, "-m", PROGRAM, "--side", "lockstep"]


def _torchrun(num_ranks: int) -> Command:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", num_ranks]
    return [sys.executable, *torchrun, "-m", PROGRAM, "--side", "ddp"]


def _rounds(commands: Mapping[str, Command], workload: str, rounds: int) -> dict[str, list[float]]:
    """Nanoseconds of a step of each program, in each round; every round begins with another program."""
    found: dict[str, list[float]] = {name: [] for name in commands}
    names = list(commands)
    for number in range(rounds):
        for at in range(len(names)):
            name = names[(at + number) % len(names)]
            found[name].append(_step_ns([*commands[name], "--workload", workload, "--rounds", STEPS]))
    return found


def _step_ns(command: Command) -> float:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "step.json"
        words = [str(word) for word in (*command, "--to", target)]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "LOCKSTEP_RUNS": folder}
        done = subprocess.run(
            words, cwd=ROOT, env=variables, check=False, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")
        step: float = json.loads(target.read_text())
        return step
