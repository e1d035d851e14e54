"""Starts the programs of a measurement and reads what rank 0 wrote into the file after `--to`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TIMEOUT_S = 1800
ROOT = Path(__file__).parents[1]

Command = Sequence[object]


def measure_in_ranks(
    module: str, num_ranks: int, arguments: Sequence[object], launch_options: Sequence[object] = ()
) -> Any:
    """Run `benchmarks.parts.<module>` on this many CPU ranks of one thread, a lane for each.

    Exits with what the ranks said when they fail.
    """
    launch = [sys.executable, "-m", "samebits", "run", "-q", "-n", num_ranks, "--lanes", num_ranks]
    launch += ["--threads", 1, "--device", "cpu", *launch_options, "-m", f"benchmarks.parts.{module}"]
    return measure_program([*launch, *arguments])


def measure_program(command: Command) -> Any:
    """Run a command with `--to FILE` and return the JSON that it wrote there; exits with what it said when it fails."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "measured.json"
        run_program([*command, "--to", target], SAMEBITS_RUNS=folder)
        return json.loads(target.read_text())


def run_program(command: Command, **variables: str) -> None:
    """Run a command with one thread for each process; exits with what it said when it fails."""
    words = [str(word) for word in command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    try:
        done = subprocess.run(
            words, cwd=ROOT, env=environment, check=False, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{' '.join(words)} took longer than {TIMEOUT_S} s.") from None
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")
