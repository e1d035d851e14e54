"""What runs in the ranks: every side makes a step in turn; the time of a step is that of its slowest rank.

lockstep run -n 2 -m benchmarks.in_rank --workload mlp --rounds 20 --to times.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

import lockstep
from benchmarks.contestants import LIMIT, OURS, Capture, sides
from benchmarks.workloads import WORKLOADS

WARM_UP = 4
TOLERANCE = 1e-4
"""Of the largest gradient: what two orders of adding may differ by."""
STEPS_PER_EPOCH = 16


def measure(found: dict[str, Iterator[None]], rounds: int) -> dict[str, list[int]]:
    """Nanoseconds of each side's steps on this rank. Every round begins with another side."""
    names = list(found)
    times: dict[str, list[int]] = {name: [] for name in names}
    for number in range(WARM_UP + rounds):
        at = number % len(names)
        for name in names[at:] + names[:at]:
            torch.use_deterministic_algorithms(name == OURS)
            if dist.is_initialized():
                dist.barrier()
            started = time.perf_counter_ns()
            next(found[name])
            times[name].append(time.perf_counter_ns() - started)
    return {name: values[WARM_UP:] for name, values in times.items()}


def slowest(times: dict[str, list[int]]) -> dict[str, list[int]]:
    """The longest time over ranks of each step."""
    table = torch.tensor(list(times.values()))
    if dist.is_initialized():
        dist.all_reduce(table, dist.ReduceOp.MAX)
    return dict(zip(times, table.tolist(), strict=True))


def largest_difference(first: list[Tensor], other: list[Tensor]) -> float:
    """Between two sets of gradients, as a part of the largest gradient."""
    scale = max(gradient.abs().max().item() for gradient in first)
    return max((a - b).abs().max().item() for a, b in zip(first, other, strict=True)) / scale


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", choices=WORKLOADS, required=True)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--to", type=Path, required=True)
    options = parser.parse_args()

    run = lockstep.init(seed=0)
    workload = WORKLOADS[options.workload]
    gradients: dict[str, list[Tensor]] = {}

    def capture(name: str) -> Capture:
        def keep_first(model: nn.Module) -> None:
            if name not in gradients:
                gradients[name] = [p.grad.clone() for p in model.parameters() if p.grad is not None]

        return keep_first

    data = workload.data(STEPS_PER_EPOCH * workload.batch * run.world_size)
    times = slowest(measure(sides(run, workload, data, capture), options.rounds))
    differences = {
        name: largest_difference(gradients[OURS], values)
        for name, values in gradients.items()
        if name not in (OURS, LIMIT)
    }
    if max(differences.values()) > TOLERANCE:
        raise SystemExit(f"the gradients of the first step differ: {differences}")
    if run.rank == 0:
        options.to.write_text(json.dumps({"times_ns": times, "gradient_difference": max(differences.values())}))


if __name__ == "__main__":
    main()
