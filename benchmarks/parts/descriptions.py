"""What an operation costs beyond signalling "I am there": its description, the comparison, the call from Python."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.bare import build
from benchmarks.rank_program import measure_in_ranks
from benchmarks.summary import Aim, Line, compare

GOAL_NS = 1000.0
ALL_REDUCE, BARRIER, ALONE, FLAGS = "all_reduce of 4 B", "barrier", "group of one rank", "two flags"


def measure_descriptions(rounds: int) -> list[Line]:
    """Two upper bounds of what the descriptions cost: an operation of a group of one rank, and the surplus over flags.

    The second one needs two cores that nobody else uses; otherwise it is the noise of the scheduler.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = ["--rounds", rounds, "--bare", build(Path(folder))]
        times = measure_in_ranks("descriptions", 2, options)["times_ns"]
    flags = FLAGS, times[FLAGS]
    found = [compare(Aim("op", "all_reduce of 4 B, nobody to wait for", GOAL_NS), (ALONE, times[ALONE]))]
    found += [
        compare(
            Aim("op", f"{name}, more than flags", GOAL_NS),
            (name, [whole - bare for whole, bare in zip(times[name], times[FLAGS], strict=True)]),
        )
        for name in (ALL_REDUCE, BARRIER)
    ]
    return found + [compare(Aim("op", name), (name, times[name]), limit=flags) for name in (ALL_REDUCE, BARRIER)]
