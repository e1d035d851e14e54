"""One script, four launchers (notes a, b, d, e): the old torch.distributed.launch, torchrun, spawn, samebits.

    $ python -m torch.distributed.launch --standalone --nproc-per-node=2 examples/notes/launchers.py
    $ torchrun --standalone --nproc-per-node=2 examples/notes/launchers.py
    $ python examples/notes/launchers.py --spawn 2
    $ samebits run -n 2 examples/notes/launchers.py
    rank 0 of 2, local rank 0, sum 3
    rank 1 of 2, local rank 1, sum 3

The old launcher passes `--local-rank` (since torch 2.0 with a dash), and samebits does for scripts that declare it; the
others set LOCAL_RANK. This script accepts either.
"""

import argparse
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(local_rank: int) -> None:
    dist.init_process_group("gloo")  # env://
    total = torch.tensor([dist.get_rank() + 1])
    dist.all_reduce(total)
    for rank in range(dist.get_world_size()):  # one after another, so that lines do not run into each other
        if rank == dist.get_rank():
            print(f"rank {rank} of {dist.get_world_size()}, local rank {local_rank}, sum {total.item()}", flush=True)
        dist.barrier()
    dist.destroy_process_group()


def spawned(rank: int, world_size: int, port: int) -> None:
    """What a launcher does for each process: the four variables of env://."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(address, RANK=str(rank), WORLD_SIZE=str(world_size))
    train(rank)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--local-rank", "--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", "0")))
    parser.add_argument("--spawn", type=int, default=0, metavar="N", help="start N processes without a launcher")
    options = parser.parse_args()
    if options.spawn:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        mp.spawn(spawned, args=(options.spawn, port), nprocs=options.spawn)
    else:
        train(options.local_rank)
