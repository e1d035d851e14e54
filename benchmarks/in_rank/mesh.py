"""What runs in the ranks of `meshes`: steps under one mesh, how long they take, and what the node's link sends meanwhile."""

from __future__ import annotations

import json
import statistics
import time
from itertools import chain, repeat
from pathlib import Path

import torch
from torch.utils.data import DataLoader

import lockstep
from benchmarks.in_rank.options import rank_parser
from benchmarks.network import LINK
from benchmarks.workloads import WORKLOADS
from lockstep.run import start

LANES, WARM_UP, STEPS_PER_EPOCH = 8, 5, 4


def sent_bytes() -> int:
    """What this node has sent so far."""
    return int(Path(f"/sys/class/net/{LINK}/statistics/tx_bytes").read_text())


def main() -> None:
    parser = rank_parser(workload=True)
    parser.add_argument("--mesh", required=True)
    options = parser.parse_args()
    workload = WORKLOADS[options.workload]
    run = lockstep.init(seed=0, threads=1, lanes=LANES, mesh=options.mesh)
    transport = start._present[0].machinery.transport
    model = workload.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = workload.batch * run.world_size
    loader = DataLoader(workload.data(batch * STEPS_PER_EPOCH), batch_size=batch)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    times, sent = [], []
    for step in chain.from_iterable(run.steps(each) for each in repeat(loader, options.rounds)):
        transport.barrier()
        before, began = sent_bytes(), time.monotonic()
        step.backward(lambda lane: torch.nn.functional.cross_entropy(model(lane[0]), lane[1]))
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.monotonic() - began)
        transport.barrier()
        sent.append(sent_bytes() - before)
    told = transport.all_gather_object([statistics.median(each[WARM_UP:]) for each in (times, sent)])
    if run.rank == 0:
        options.to.write_text(json.dumps({"s": max(took for took, _ in told), "bytes": max(left for _, left in told)}))
    transport.barrier()


if __name__ == "__main__":
    main()
