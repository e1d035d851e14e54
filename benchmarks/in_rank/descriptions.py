"""What runs in the ranks of `descriptions`: tiny operations and bare flags in turn, many at a time."""

from __future__ import annotations

import json
from functools import partial

import torch
import torch.distributed as dist

from benchmarks.bare import Bare
from benchmarks.in_rank.collectives import Buffer, by_handle, window_memory
from benchmarks.in_rank.options import rank_parser
from benchmarks.in_rank.turns import Turn, slowest, take_turns
from benchmarks.parts.descriptions import ALL_REDUCE, ALONE, BARRIER, FLAGS
from lockstep.node.meeting import meet

OFTEN = 500
"""Operations between two looks at the clock."""
FLAG_BYTES = 4096


def many(act: Turn) -> Turn:
    """The same, often."""

    def turn() -> None:
        for _ in range(OFTEN):
            act()

    return turn


def main() -> None:
    options = rank_parser(bare=True).parse_args()

    dist.init_process_group("gloo")
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("benchmarks", dist.group.WORLD.get_group_store())
    group = meet(store, rank, num_ranks, lambda: "benchmarks")
    alone = meet(dist.HashStore(), 0, 1, lambda: "benchmarks")
    window, _ = window_memory(group, FLAG_BYTES)
    flags = window.address(0)
    one = Buffer(torch.zeros(1), torch.zeros(1))
    barrier = by_handle(group, "barrier", one)
    sides: dict[str, Turn] = {
        ALL_REDUCE: many(by_handle(group, "all_reduce", one)),
        BARRIER: many(barrier),
        ALONE: many(by_handle(alone, "all_reduce", one)),
        FLAGS: partial(Bare(options.bare).exchange_flags, flags, rank, num_ranks, OFTEN),
    }
    times = slowest(take_turns(sides, options.rounds, warm_up=3, barrier=barrier))
    if rank == 0:
        told = {name: [time / OFTEN for time in values] for name, values in times.items()}
        options.to.write_text(json.dumps({"times_ns": told}))
    alone.leave()
    group.leave()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
