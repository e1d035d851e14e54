"""What a step costs besides the model: a tiny model's step in microseconds, split into parts, for 1 and 2 ranks.

`journal`, `checks` and `streams` are what the scoreboard limits to 1 % of a step of 20 ms; a step of an ordinary loop
with the same model stands beside them. The parts are timed from inside, so their sum is a little too high.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 300
ROOT = Path(__file__).parents[1]
LIMITED = ("journal", "checks", "streams")
STEP_US = 20_000
LIMIT = 0.01
"""Of a step of `STEP_US`."""


@dataclass(frozen=True)
class Overhead:
    """Medians over steps, in microseconds, of the slower rank."""

    num_ranks: int
    step_us: float
    bare_us: float
    """The same model in an ordinary loop."""
    parts_us: dict[str, float]

    @property
    def limited_share(self) -> float:
        """What is limited, as a share of a step of 20 ms."""
        return sum(self.parts_us[part] for part in LIMITED) / STEP_US


def measure_overhead(num_ranks: int, steps: int) -> Overhead:
    """Start the ranks and read what they measured."""
    with tempfile.TemporaryDirectory() as folder:
        launch = [Path(sys.executable).parent / "lockstep", "run", "-q", "--log-dir", folder, "-n", num_ranks]
        launch += ["--threads", 1, "--lanes", num_ranks, "--device", "cpu", "-m", "benchmarks.overhead_in_rank"]
        done = subprocess.run(
            [str(word) for word in (*launch, "--steps", steps, "--to", folder)],
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        if done.returncode:
            raise SystemExit(f"the overhead on {num_ranks} ranks could not be measured:\n{done.stdout}{done.stderr}")
        ranks = [json.loads((Path(folder) / f"overhead-{rank}.json").read_text()) for rank in range(num_ranks)]
    slowest = max(ranks, key=lambda told: float(told["step_us"]))
    return Overhead(num_ranks, **slowest)


def overhead_table(measured: Sequence[Overhead]) -> str:
    """The parts under each other, one column for each number of ranks."""
    rows = [["µs per step of a tiny model", *(f"{one.num_ranks} rank{'s' * (one.num_ranks > 1)}" for one in measured)]]
    rows += [[part, *(f"{one.parts_us[part]:.0f}" for one in measured)] for part in measured[0].parts_us]
    rows.append(["whole step", *(f"{one.step_us:.0f}" for one in measured)])
    rows.append(["step of an ordinary loop", *(f"{one.bare_us:.0f}" for one in measured)])
    shares = (f"{one.limited_share:.2%}" for one in measured)
    rows.append([f"{' + '.join(LIMITED)}, of 20 ms (limit {LIMIT:.0%})", *shares])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    )
