"""Training steps, every side in turn in the same processes: our engine beside the best-tuned DDP (C6), one rank beside the bare
loop (C8), and a DDP loop over our backend beside Gloo (C5).

samebits run -n 2 -m benchmarks.parts.steps --workload mlp --rounds 20 --to times.json
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import samebits
import samebits.torch_backend
from benchmarks.parts.sides import (
    BARE,
    BUCKET_CAPS_MIB,
    GLOO,
    LIMIT,
    OURS,
    STEPS_PER_EPOCH,
    Models,
    Record,
    bucketed,
    ddp_sides,
    plain_side,
    rank_parser,
    samebits_side,
    slowest,
    take_turns,
)
from benchmarks.rank_program import measure_in_ranks
from benchmarks.summary import (
    BACKWARD,
    EXCHANGE,
    FORWARD,
    PHASES,
    REST,
    UPDATE,
    Aim,
    Line,
    best,
    compare,
    compare_removed,
)
from benchmarks.workloads import WORKLOADS, Workload

ALONE = "a group of one rank"
"""DDP over it exchanges nothing, but does all of its own work."""
LONG_STEP_NS = 20e6
"""Only longer steps of one rank have a goal."""
ALONE_GOAL, REMOVED_GOAL = 0.99, 0.85
WARM_UP = 5
"""One more than the updates that the engine compares over ranks."""
TOLERANCE = 1e-4
"""Of the largest gradient: what two orders of adding may differ by."""

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


def measure_ddp(workload: str, rounds: int) -> list[Line]:
    """One workload on two ranks: the best bucket cap of each side. Exits when their first gradients differ.

    The second line is what could be gone: DDP over a group of one rank exchanges nothing, but does all of its own work.
    """
    options = ["--workload", workload, "--rounds", rounds * WORKLOADS[workload].rounds_factor]
    times = measure_in_ranks("steps", 2, ["--ddp", *options])["times_ns"]
    limit, alone = (LIMIT, times.pop(LIMIT)), (ALONE, times.pop(ALONE))
    ours, gloo = (best({name: of for name, of in times.items() if name.startswith(label)}) for label in (OURS, GLOO))
    pair = (ours, times[ours]), (gloo, times[gloo])
    what = f"DDP: {WORKLOADS[workload].what}"
    return [
        compare_removed(Aim("C5", f"{what}, exchange gone", REMOVED_GOAL), *pair, limit),
        compare_removed(Aim("C5", f"{what}, without DDP's own part"), alone, pair[1], limit),
        compare(Aim("C5", f"{what}, whole step", 1.0), *pair, limit),
    ]


def _measured(workload: str, num_ranks: int, rounds: int, strategy: str) -> Any:
    arguments: Sequence[object] = ["--workload", workload, "--rounds", rounds * WORKLOADS[workload].rounds_factor]
    return measure_in_ranks("steps", num_ranks, arguments, ["--strategy", strategy])


def measure(found: dict[str, Iterator[None]], records: dict[str, Record], rounds: int) -> dict[str, list[int]]:
    """Nanoseconds of each side's steps on this rank."""

    def begin(name: str) -> None:
        torch.use_deterministic_algorithms(name == OURS)
        records[name].laps.begin()

    def step(name: str) -> None:
        next(found[name])
        records[name].laps.end_step()

    barrier = dist.barrier if dist.is_initialized() else lambda: None
    sides = {name: partial(step, name) for name in found}
    return take_turns(sides, rounds, warm_up=WARM_UP, barrier=barrier, before=begin)


def mean_phases(records: dict[str, Record]) -> dict[str, dict[str, float]]:
    """Collective: nanoseconds of each side's phases, the median over steps, the mean over ranks."""
    phases = (FORWARD, BACKWARD, UPDATE)
    steps = [[[step[phase] for phase in phases] for step in of.laps.steps[WARM_UP:]] for of in records.values()]
    table = torch.tensor(steps, dtype=torch.float64).quantile(0.5, dim=1)
    if dist.is_initialized():
        dist.all_reduce(table)
        table /= dist.get_world_size()
    return {name: dict(zip(phases, row, strict=True)) for name, row in zip(records, table.tolist(), strict=True)}


def largest_difference(first: list[Tensor], other: list[Tensor]) -> float:
    """Between two sets of gradients, as a fraction of the largest gradient."""
    scale = max(gradient.abs().max().item() for gradient in first)
    return max((a - b).abs().max().item() for a, b in zip(first, other, strict=True)) / scale


def differences(records: dict[str, Record], reference: str) -> dict[str, float]:
    """How far the first gradients of the sides that exchange are from the reference's.

    Raises:
        SystemExit: when one is beyond the tolerance.
    """
    found = {
        name: largest_difference(records[reference].gradients, record.gradients)
        for name, record in records.items()
        if name not in (reference, LIMIT)
    }
    if not all(difference <= TOLERANCE for difference in found.values()):
        raise SystemExit(f"the gradients of the first step differ: {found}")
    return found


def sides(run: samebits.Run, workload: Workload, records: dict[str, Record]) -> dict[str, Iterator[None]]:
    """Our engine first; then DDP's and the limit, or the bare loop for one rank."""
    num_samples = STEPS_PER_EPOCH * workload.batch * run.world_size
    data = workload.data(num_samples)
    models = Models(workload, run.rank, run.world_size, num_samples)
    found = {OURS: samebits_side(run, workload, models.first, data, records[OURS])}
    hide = run._run.components.checks.take
    if run.world_size == 1:
        found[BARE] = plain_side(models.another(), data, models.batches, records[BARE], exchange=True, hide=hide)
        return found
    return found | ddp_sides(models, data, {"DDP": dist.new_group(backend="gloo")}, records.__getitem__, hide)


def of_our_engine(workload: Workload, rounds: int) -> dict[str, Any]:
    """What the ranks of `steps` and `alone` measure."""
    run = samebits.init(seed=0)
    records: dict[str, Record] = defaultdict(Record)
    found = sides(run, workload, records)
    records = {name: records[name] for name in found}
    times = slowest(measure(found, records, rounds))
    return {"times_ns": times, "phases_ns": mean_phases(records), "differences": differences(records, OURS)}


def of_our_backend(workload: Workload, rounds: int) -> dict[str, Any]:
    """What the ranks of `ddp` measure. Nothing of ours but the backend's name: `samebits run` only starts the ranks."""
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    num_samples = STEPS_PER_EPOCH * workload.batch * world_size
    models, data = Models(workload, rank, world_size, num_samples), workload.data(num_samples)
    records: dict[str, Record] = defaultdict(Record)
    groups = {GLOO: dist.new_group(backend="gloo"), OURS: dist.new_group(backend="samebits")}
    found = ddp_sides(models, data, groups, records.__getitem__)
    own = [dist.new_group([one], backend="samebits") for one in range(world_size)][rank]
    found[ALONE] = plain_side(models.wrapped(own), data, models.batches, records[ALONE], exchange=True)
    times = slowest(measure(found, records, rounds))
    exchanged = {
        name: record for name, record in records.items() if name != ALONE
    }  # whose gradients are the rank's own
    told = {"times_ns": times, "differences": differences(exchanged, bucketed(GLOO, BUCKET_CAPS_MIB[0]))}
    dist.destroy_process_group()
    return told


def main() -> None:
    parser = rank_parser(workload=True)
    parser.add_argument("--ddp", action="store_true", help="DDP loops over Gloo and over our backend")
    options = parser.parse_args()
    told = (of_our_backend if options.ddp else of_our_engine)(WORKLOADS[options.workload], options.rounds)
    if os.environ["RANK"] == "0":
        options.to.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
