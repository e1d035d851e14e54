"""A rank that is killed in the middle of a step, until that step is done (C11, D3): noticed, all ranks started again, computed.

The script's own start, as it took the first time, is taken off: a loss costs it again, whatever we do.
"""

from __future__ import annotations

from benchmarks.rank_program import measure_in_ranks
from benchmarks.summary import Aim, Line, compare

RANKS = 2
GOALS_NS = {"small": ("C11", 0.3e9), "gpt-124m": ("D3", 3.0e9)}
MODELS = tuple(GOALS_NS)


def measure_loss(model: str, rounds: int) -> list[Line]:
    """One run in each round, of which a rank dies once."""
    told = [measure_in_ranks("lost", RANKS, ("--model", model)) for _ in range(rounds)]
    row, goal_ns = GOALS_NS[model]
    beyond = [one["whole"] - one["own_start"] for one in told]
    line = compare(
        Aim(row, f"one of {RANKS} ranks is killed, {model}: beyond the script's own start", goal_ns),
        ("all again", beyond),
    )
    middle = {name: sorted(one[name] for one in told)[len(told) // 2] for name in told[0]}
    return [line.with_notes({"parts": middle})]
