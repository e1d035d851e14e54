"""What runs in the ranks of `steps` and `alone`: every side makes a step in turn.

lockstep run -n 2 -m benchmarks.in_rank.steps --workload mlp --rounds 20 --to times.json
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

import lockstep
from benchmarks.in_rank.back_end import gloo_group
from benchmarks.in_rank.contestants import (
    BARE,
    LIMIT,
    OURS,
    STEPS_PER_EPOCH,
    Models,
    Record,
    ddp_sides,
    lockstep_side,
    plain_side,
)
from benchmarks.in_rank.options import rank_parser
from benchmarks.in_rank.turns import slowest, take_turns
from benchmarks.laps import BACKWARD, FORWARD, UPDATE
from benchmarks.workloads import WORKLOADS, Workload

WARM_UP = 5
"""One more than the updates that the engine compares over ranks."""
TOLERANCE = 1e-4
"""Of the largest gradient: what two orders of adding may differ by."""


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


def sides(run: lockstep.Run, workload: Workload, records: dict[str, Record]) -> dict[str, Iterator[None]]:
    """Our engine first; then DDP's and the limit, or the bare loop for one rank."""
    num_samples = STEPS_PER_EPOCH * workload.batch * run.world_size
    data = workload.data(num_samples)
    models = Models(workload, run.rank, run.world_size, num_samples)
    found = {OURS: lockstep_side(run, workload, models.first, data, records[OURS])}
    hide = run._run.machinery.strangers.take
    if run.world_size == 1:
        found[BARE] = plain_side(models.another(), data, models.batches, records[BARE], exchange=True, hide=hide)
        return found
    return found | ddp_sides(models, data, {"DDP": gloo_group()}, records.__getitem__, hide)


def main() -> None:
    options = rank_parser(workload=True).parse_args()

    run = lockstep.init(seed=0)
    records: dict[str, Record] = defaultdict(Record)
    found = sides(run, WORKLOADS[options.workload], records)
    records = {name: records[name] for name in found}
    times = slowest(measure(found, records, options.rounds))
    told = {"times_ns": times, "phases_ns": mean_phases(records), "differences": differences(records, OURS)}
    if run.rank == 0:
        options.to.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
