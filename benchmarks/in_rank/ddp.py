"""What runs in the ranks of `ddp`: the same DDP loop over Gloo, over our backend, and without exchange, in turn.

Nothing of ours but the backend's name: `lockstep run` only starts the ranks.
"""

from __future__ import annotations

import json
from collections import defaultdict

import torch.distributed as dist

from benchmarks.cases import GLOO
from benchmarks.in_rank.back_end import gloo_group, lockstep_group, own_group
from benchmarks.in_rank.contestants import (
    BUCKET_CAPS_MIB,
    OURS,
    STEPS_PER_EPOCH,
    Models,
    Record,
    bucketed,
    ddp_sides,
    plain_side,
)
from benchmarks.in_rank.options import rank_parser
from benchmarks.in_rank.steps import differences, measure
from benchmarks.in_rank.turns import slowest
from benchmarks.parts.ddp import ALONE
from benchmarks.workloads import WORKLOADS


def main() -> None:
    options = rank_parser(workload=True).parse_args()

    dist.init_process_group("gloo")
    workload, rank, world_size = WORKLOADS[options.workload], dist.get_rank(), dist.get_world_size()
    num_samples = STEPS_PER_EPOCH * workload.batch * world_size
    models = Models(workload, rank, world_size, num_samples)
    records: dict[str, Record] = defaultdict(Record)
    groups = {GLOO: gloo_group(), OURS: lockstep_group()}
    data = workload.data(num_samples)
    found = ddp_sides(models, data, groups, records.__getitem__)
    found[ALONE] = plain_side(models.wrapped(own_group()), data, models.batches, records[ALONE], exchange=True)
    times = slowest(measure(found, records, options.rounds))
    exchanged = {
        name: record for name, record in records.items() if name != ALONE
    }  # whose gradients are the rank's own
    told = {"times_ns": times, "differences": differences(exchanged, bucketed(GLOO, BUCKET_CAPS_MIB[0]))}
    if rank == 0:
        options.to.write_text(json.dumps(told))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
