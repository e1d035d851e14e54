"""A rank that is killed in the middle of a step, until the survivor's step is done (C11): noticed, replaced, computed."""

from __future__ import annotations

from benchmarks.rank_program import measure_in_ranks
from benchmarks.summary import Aim, Line, compare

RANKS, GOAL_NS = 2, 0.3e9


def measure_replacement(rounds: int) -> list[Line]:
    """One run in each round, of which a rank dies once."""
    gaps = [measure_in_ranks("replaced", RANKS, ()) for _ in range(rounds)]
    aim = Aim("C11", f"a step in which one of {RANKS} ranks is killed", GOAL_NS)
    return [compare(aim, ("replaced", gaps))]
