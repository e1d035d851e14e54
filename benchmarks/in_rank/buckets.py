"""What runs in the ranks of `buckets`: the same gradients reduced in buckets of several sizes, in turn."""

from __future__ import annotations

import json
from functools import partial

import torch
import torch.distributed as dist

from benchmarks.in_rank.contestants import Models
from benchmarks.in_rank.options import rank_parser
from benchmarks.in_rank.turns import Turn, slowest, take_turns
from benchmarks.parts.buckets import OURS_KIB, SIZES_KIB, bucket_name
from benchmarks.workloads import WORKLOADS
from lockstep.layout.placement import Placement
from lockstep.strategy.replica.slots import SlotPool
from lockstep.transport.contract import Transport
from lockstep.transport.shared_memory import SharedMemoryTransport

EVICTING_FLOATS = 16 << 20
SCALE = 0.5


def reduction(pool: SlotPool, transport: Transport, placement: Placement) -> Turn:
    """One reduction of a slot of the pool, in the pool's buckets."""
    slot = pool.take()

    def turn() -> None:
        parts = [slot.flats[bucket.flat][bucket.start : bucket.end] for bucket in pool.buckets]
        begun = [transport.begin_all_reduce([part], placement, part) for part in parts]
        for pending in begun:
            pending.advance(SCALE)
        for pending in begun:
            pending.finish()

    return turn


def main() -> None:
    options = rank_parser(workload=True).parse_args()

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("benchmarks", dist.group.WORLD.get_group_store())
    transport = SharedMemoryTransport(store, rank, num_ranks)
    parameters = list(Models(WORKLOADS[options.workload], rank, num_ranks, 1).first.parameters())
    placement = Placement(num_ranks, tuple(range(num_ranks + 1)))
    sides = {
        bucket_name(kib): reduction(SlotPool(parameters, transport, 1, kib << 10), transport, placement)
        for kib in {*SIZES_KIB, OURS_KIB}
    }
    evicting = torch.zeros(EVICTING_FLOATS)
    evict = partial(evicting.add_, 1.0)
    times = take_turns(sides, options.rounds, warm_up=3, barrier=transport.barrier, before=lambda _: evict())
    times = slowest(times)
    if rank == 0:
        options.to.write_text(json.dumps({"times_ns": times}))
    transport.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
