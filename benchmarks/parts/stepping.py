"""Training steps of our engine beside the best-tuned DDP (C6), and of one rank beside the bare loop (C8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.laps import BACKWARD, EXCHANGE, FORWARD, PHASES, REST, UPDATE
from benchmarks.rank_program import measure_in_ranks
from benchmarks.summary import Aim, Line, best, compare
from benchmarks.workloads import WORKLOADS

OURS, LIMIT, BARE = "lockstep", "no exchange", "bare loop"
LONG_STEP_NS = 20e6
"""Only longer steps of one rank have a goal."""
ALONE_GOAL = 0.99

Phases = Mapping[str, Mapping[str, float]]


def measure_steps(workload: str, strategy: str, rounds: int) -> list[Line]:
    """One workload on two ranks, one lane each. Exits when the gradients of the sides differ."""
    told = _measured(workload, 2, rounds, strategy)
    times, told_phases = told["times_ns"], told["phases_ns"]
    ours, limit = times.pop(OURS), times.pop(LIMIT)
    name = best(times)
    aim = Aim("C6", WORKLOADS[workload].what, WORKLOADS[workload].goal)
    totals = {OURS: median(ours), name: median(times[name]), LIMIT: median(limit)}
    return [
        compare(aim, (strategy, ours), (name, times[name]), (LIMIT, limit)).with_notes(
            {label: phases(side, totals[side], told_phases) for side, label in ((OURS, strategy), (name, name))}
        )
    ]


def measure_alone(workload: str, rounds: int) -> list[Line]:
    """One workload on one rank with one lane. Exits when the gradients of the sides differ."""
    times = _measured(workload, 1, rounds, "single")["times_ns"]
    goal = ALONE_GOAL if median(times[BARE]) >= LONG_STEP_NS else 0.0
    aim = Aim("C8", f"alone: {WORKLOADS[workload].what}", goal)
    return [compare(aim, ("single", times[OURS]), (BARE, times[BARE]), (BARE, times[BARE]))]


def phases(side: str, total: float, told: Phases, limit: str = LIMIT) -> dict[str, float]:
    """Where the time of a side's step went, in nanoseconds; the parts add up to `total`.

    What the backward takes beyond the one without exchange is exchange: an exchange that hides behind the backward
    costs nothing here, and one that takes the core away from it does.
    """
    backward = min(told[side][BACKWARD], told[limit][BACKWARD])
    found = {
        FORWARD: told[side][FORWARD],
        BACKWARD: backward,
        EXCHANGE: told[side][BACKWARD] - backward,
        UPDATE: told[side][UPDATE],
    }
    found[REST] = max(total - sum(found.values()), 0.0)
    return {phase: found[phase] for phase in PHASES}


def _measured(workload: str, num_ranks: int, rounds: int, strategy: str) -> Any:
    arguments: Sequence[object] = ["--workload", workload, "--rounds", rounds * WORKLOADS[workload].rounds_factor]
    return measure_in_ranks("steps", num_ranks, arguments, ["--strategy", strategy])
