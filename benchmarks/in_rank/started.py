"""One side of `started`, in processes of its own: its steps one after the other, timed on the slowest rank.

lockstep run -n 2 -m benchmarks.in_rank.started --side lockstep --workload mlp --rounds 20 --to times.json
torchrun --standalone --nproc-per-node 2 -m benchmarks.in_rank.started --side ddp --bucket-cap 25 ...
python -m benchmarks.in_rank.started --side bare ...
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from statistics import median

import torch
import torch.distributed as dist

from benchmarks.in_rank.contestants import BUCKET_CAPS_MIB, STEPS_PER_EPOCH, Models, Record, lockstep_side, plain_side
from benchmarks.in_rank.options import rank_parser
from benchmarks.in_rank.turns import slowest
from benchmarks.workloads import WORKLOADS, Workload

WARM_UP = 8


def side_of(name: str, workload: Workload, bucket_cap_mib: int) -> Iterator[None]:
    """The side, ready to make steps."""
    if name == "lockstep":
        import lockstep  # the others must not have it  # noqa: PLC0415

        run = lockstep.init(seed=0)
        rank, world_size = run.rank, run.world_size
    else:
        torch.set_num_threads(1)
        if name == "ddp":
            dist.init_process_group("gloo")
        rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    num_samples = STEPS_PER_EPOCH * workload.batch * world_size
    models, data = Models(workload, rank, world_size, num_samples), workload.data(num_samples)
    if name == "lockstep":
        return lockstep_side(run, workload, models.first, data, Record())
    model = models.wrapped(dist.group.WORLD, bucket_cap_mib) if name == "ddp" else models.first
    return plain_side(model, data, models.batches, Record(), exchange=True)


def main() -> None:
    parser = rank_parser(workload=True)
    parser.add_argument("--side", choices=("lockstep", "ddp", "bare"), required=True)
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
