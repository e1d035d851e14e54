"""Starts the ranks of a measurement and reads what rank 0 wrote."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TIMEOUT_S = 1800
ROOT = Path(__file__).parents[1]


def measure_in_ranks(
    module: str, num_ranks: int, arguments: Sequence[object], launch_options: Sequence[object] = ()
) -> Any:
    """Run `benchmarks.in_rank.<module>` on this many CPU ranks of one thread; it writes JSON to the file after `--to`.

    Exits with what the ranks said when they fail.
    """
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "measured.json"
        launch = [sys.executable, "-m", "lockstep", "run", "-q", "--log-dir", folder, "-n", num_ranks]
        launch += [
            "--threads",
            1,
            "--lanes",
            num_ranks,
            "--device",
            "cpu",
            *launch_options,
            "-m",
            f"benchmarks.in_rank.{module}",
        ]
        command = [str(word) for word in (*launch, *arguments, "--to", target)]
        try:
            done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise SystemExit(
                f"benchmarks.in_rank.{module} on {num_ranks} ranks took longer than {TIMEOUT_S} s."
            ) from None
        if done.returncode:
            words = " ".join(map(str, arguments))
            raise SystemExit(
                f"benchmarks.in_rank.{module} {words} on {num_ranks} ranks failed:\n{done.stdout}{done.stderr}"
            )
        return json.loads(target.read_text())
