"""What runs in the ranks of `over_nodes` to count bytes: sums of 32 MiB, and what the node's link sent meanwhile."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch

import lockstep
from benchmarks.in_rank.options import rank_parser
from benchmarks.network import LINK
from lockstep.layout.placement import place
from lockstep.run import start

SIZE, SUMS = 8 << 20, 6


def main() -> None:
    options = rank_parser().parse_args()
    run = lockstep.init(seed=0)
    transport = start._present[0].machinery.transport
    placement = place(run.world_size, run.world_size, transport.nodes)
    part = transport.allocate(SIZE, torch.float32, torch.device("cpu"))

    def sent() -> int:
        transport.barrier()
        return int(Path(f"/sys/class/net/{LINK}/statistics/tx_bytes").read_text())

    transport.all_reduce([part], placement, part)
    before = sent()
    for _ in range(SUMS):
        transport.all_reduce([part], placement, part)
    most = max(transport.all_gather_object(sent() - before))
    num_nodes = int(os.environ["GROUP_WORLD_SIZE"])
    ring = 2 * (num_nodes - 1) / num_nodes * SIZE * 4 * SUMS
    if run.rank == 0:
        options.to.write_text(json.dumps({"of_a_ring": most / ring}))
    transport.barrier()


if __name__ == "__main__":
    main()
