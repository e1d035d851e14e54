"""Steps of programs as people start them, one program at a time: ours by `samebits run`, DDP by torchrun, a bare loop by python.

`steps` and `alone` have all sides in the same processes, which is the fairest to what they compute and gives the others
what `samebits run` sets up: its allocator's settings, and no page faults in each step.

samebits run -n 2 -m benchmarks.parts.started --side samebits --workload mlp --rounds 20 --to times.json
torchrun --standalone --nproc-per-node 2 -m benchmarks.parts.started --side ddp --bucket-cap 25 ...
python -m benchmarks.parts.started --side bare ...
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from statistics import median

import torch
import torch.distributed as dist

from benchmarks.parts.sides import (
    BUCKET_CAPS_MIB,
    STEPS_PER_EPOCH,
    Models,
    Record,
    bucketed,
    plain_side,
    rank_parser,
    samebits_side,
    slowest,
)
from benchmarks.rank_program import Command, measure_program
from benchmarks.summary import Aim, Line, best, compare
from benchmarks.workloads import WORKLOADS, Workload

STEPS, WARM_UP = 40, 8
"""Of each program, after its first ones."""
PROGRAM = "benchmarks.parts.started"


def measure_started(workload: str, num_ranks: int, rounds: int) -> list[Line]:
    """One workload on one or two ranks, one lane each. A round starts every program once, and takes its median step."""
    if num_ranks == 1:
        ours, others = {"single": _ours("single", 1)}, {"bare loop": [sys.executable, "-m", PROGRAM, "--side", "bare"]}
        row = "C8"
    else:
        ours = {name: _ours(name, num_ranks) for name in ("ddp", "zero1")}
        others = {bucketed("DDP", cap): [*_torchrun(num_ranks), "--bucket-cap", cap] for cap in BUCKET_CAPS_MIB}
        row = "C6"
    found = _rounds({**ours, **others}, workload, rounds)
    name = best({name: found[name] for name in others})
    aim = Aim(row, f"started: {WORKLOADS[workload].what}", 1.0)
    return [compare(aim, (side, found[side]), (name, found[name])) for side in ours]


def _ours(strategy: str, num_ranks: int) -> Command:
    options = ["-n", num_ranks, "--lanes", num_ranks, "--strategy", strategy, "--threads", 1, "--device", "cpu"]
    return [sys.executable, "-m", "samebits", "run", "-q", *options, "-m", PROGRAM, "--side", "samebits"]


def _torchrun(num_ranks: int) -> Command:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", num_ranks]
    return [sys.executable, *torchrun, "-m", PROGRAM, "--side", "ddp"]


def _rounds(commands: Mapping[str, Command], workload: str, rounds: int) -> dict[str, list[float]]:
    """Nanoseconds of a step of each program, in each round; every round begins with another program."""
    found: dict[str, list[float]] = {name: [] for name in commands}
    names = list(commands)
    for number in range(rounds):
        for at in range(len(names)):
            name = names[(at + number) % len(names)]
            found[name].append(measure_program([*commands[name], "--workload", workload, "--rounds", STEPS]))
    return found


def side_of(name: str, workload: Workload, bucket_cap_mib: int) -> Iterator[None]:
    """The side, ready to make steps."""
    if name == "samebits":
        import samebits  # the others must not have it  # noqa: PLC0415

        run = samebits.init(seed=0)
        rank, world_size = run.rank, run.world_size
    else:
        torch.set_num_threads(1)
        if name == "ddp":
            dist.init_process_group("gloo")
        rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    num_samples = STEPS_PER_EPOCH * workload.batch * world_size
    models, data = Models(workload, rank, world_size, num_samples), workload.data(num_samples)
    if name == "samebits":
        return samebits_side(run, workload, models.first, data, Record())
    model = models.wrapped(dist.group.WORLD, bucket_cap_mib) if name == "ddp" else models.first
    return plain_side(model, data, models.batches, Record(), exchange=True)


def main() -> None:
    parser = rank_parser(workload=True)
    parser.add_argument("--side", choices=("samebits", "ddp", "bare"), required=True)
    parser.add_argument("--bucket-cap", type=int, choices=BUCKET_CAPS_MIB, default=25)
    options = parser.parse_args()

    steps = side_of(options.side, WORKLOADS[options.workload], options.bucket_cap)
    times = []
    for _ in range(WARM_UP + options.rounds):
        began = time.perf_counter_ns()
        next(steps)
        times.append(time.perf_counter_ns() - began)
    [times] = slowest({"steps": times[WARM_UP:]}).values()
    if os.environ.get("RANK", "0") == "0":
        options.to.write_text(json.dumps(median(times)))
    if options.side == "ddp":
        dist.destroy_process_group()  # or Gloo's threads abort the process at its end, now and then


if __name__ == "__main__":
    main()
