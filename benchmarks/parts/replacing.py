"""From an order to a warm nursery to the first collective of the ranks that it forked (C11).

Today a run that loses a rank ends, and no single rank is replaced. What is measured is the least that a replacement
costs: launcher, fork, `lockstep.init`, meeting, and the first collective, for all ranks of a new run at once.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.summary import Aim, Line, compare
from lockstep.trials.trials import Program, Trials

SCRIPT = Path(__file__).parents[1] / "in_rank" / "first_collective.py"
RANKS, GOAL_NS = 2, 0.3e9


def measure_replacement(rounds: int) -> list[Line]:
    """Fresh rank sets, one after the other, all forked from one nursery that has imported torch."""
    times = []
    with tempfile.TemporaryDirectory() as folder:
        program = Program(SCRIPT, None, (folder,), 1, "cpu")
        with Trials(program, lambda *_: None, purpose="bench") as trials:
            try:
                for number in range(rounds + 1):
                    started = time.monotonic_ns()
                    trial = trials.run(f"trial {number}", RANKS, None, {})
                    if trial.outcome.exit_code:
                        raise SystemExit(f"the ranks ended with code {trial.outcome.exit_code}")
                    times.append(max(int(Path(folder, str(rank)).read_text()) for rank in range(RANKS)) - started)
            finally:
                trials.remove()
    aim = Aim("C11", f"{RANKS} new ranks to their first collective (no single replacement yet)", GOAL_NS)
    return [compare(aim, ("fork from the nursery", times[1:]))]
