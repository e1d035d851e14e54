"""Gloo, processes by spawn, and a checkpoint that one rank writes and all read (note a). Needs no launcher.

    $ python examples/notes/gloo_spawn_checkpoint.py
    got ... gpus.
    Running basic DDP example on rank 0.
    Running basic DDP example on rank 1.
    Running DDP checkpoint example on rank 0.
    Running DDP checkpoint example on rank 1.
    rank 0 has loaded what rank 0 saved: True
    rank 1 has loaded what rank 0 saved: True

The ranks meet in a file: no address and no port that another job could have taken.
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def setup(rank: int, world_size: int, folder: Path, name: str) -> torch.device:
    """Meet the other ranks; return this rank's device."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/{name}", rank=rank, world_size=world_size)
    return torch.device("cuda", rank) if torch.cuda.device_count() >= world_size else torch.device("cpu")


def toy_model(device: torch.device) -> DistributedDataParallel:
    toy = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)).to(device)
    return DistributedDataParallel(toy, device_ids=[device] if device.type == "cuda" else None)


def train_once(model: nn.Module, device: torch.device) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    inputs, labels = torch.randn(20, 10, device=device), torch.randn(20, 5, device=device)
    nn.functional.mse_loss(model(inputs), labels).backward()  # the gradients are averaged when this returns
    optimizer.step()


def demo_basic(rank: int, world_size: int, folder: Path) -> None:
    print(f"Running basic DDP example on rank {rank}.")
    device = setup(rank, world_size, folder, "basic")
    train_once(toy_model(device), device)
    dist.destroy_process_group()


def demo_checkpoint(rank: int, world_size: int, folder: Path) -> None:
    print(f"Running DDP checkpoint example on rank {rank}.")
    device = setup(rank, world_size, folder, "checkpoint")
    model, path = toy_model(device), folder / "model.pt"
    train_once(model, device)
    if rank == 0:
        torch.save(model.module.state_dict(), path)  # .module: keys without the prefix `module.`
    saved = {name: tensor.clone() for name, tensor in model.module.state_dict().items()}
    train_once(model, device)  # away from what was saved
    dist.barrier()  # nobody reads before rank 0 has written
    model.module.load_state_dict(torch.load(path, map_location=device, weights_only=True))
    same = all(torch.equal(tensor, saved[name]) for name, tensor in model.module.state_dict().items())
    print(f"rank {rank} has loaded what rank 0 saved: {same}")
    dist.destroy_process_group()


if __name__ == "__main__":
    print(f"got {torch.cuda.device_count()} gpus.")
    with tempfile.TemporaryDirectory() as place:
        for demo in (demo_basic, demo_checkpoint):
            mp.spawn(demo, args=(2, Path(place)), nprocs=2, join=True)
