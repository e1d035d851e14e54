"""What a step costs besides the model: a tiny model's step in microseconds, split into parts, for 1 and 2 ranks.

`journal`, `checks` and `streams` are what the scoreboard limits to 1 % of a step of 20 ms; a step of an ordinary loop
with the same model is shown beside them. The parts are timed from inside, so their sum is a little too high.
"""

from __future__ import annotations

from statistics import median

from benchmarks.rank_program import measure_in_ranks
from benchmarks.summary import Aim, Line, compare

LIMITED = ("journal", "checks", "streams")
GOAL_NS = 0.01 * 20e6
"""1 % of a step of 20 ms."""


def measure_overhead(num_ranks: int, steps: int) -> list[Line]:
    """What is limited, every part, and the whole step beside an ordinary one, all of the slower rank."""
    ranks = measure_in_ranks("overhead", num_ranks, ["--steps", steps])
    slower = max(ranks, key=lambda told: median(told["step_ns"]))
    parts, suffix = slower["parts_ns"], f", {num_ranks} rank{'s' * (num_ranks > 1)}"
    together = [sum(times) for times in zip(*(parts[part] for part in LIMITED), strict=True)]
    aim = Aim("C16", f"{' + '.join(LIMITED)}{suffix}", GOAL_NS)
    found = [compare(aim, ("lockstep", together))]
    found += [compare(Aim("C16", f"{part}{suffix}"), ("lockstep", times)) for part, times in parts.items()]
    bare = "ordinary loop", slower["bare_ns"]
    return [*found, compare(Aim("C16", f"step of a tiny model{suffix}"), ("lockstep", slower["step_ns"]), bare)]
