"""Note a's spawn with samebits: no address, no port, no guard around saving, no barrier.

    $ python examples/notes/spawn_samebits.py
    Running basic DDP example on rank 0.
    Running basic DDP example on rank 1.
    Running DDP checkpoint example on rank 0.
    Running DDP checkpoint example on rank 1.
    rank 0 has loaded what rank 0 saved: True
    rank 1 has loaded what rank 0 saved: True

`samebits.spawn` is called like torch.multiprocessing.spawn. `init_process_group` finds the others on its own, and so
does `samebits.init`. It works in a notebook cell too.
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import samebits


def demo_basic(rank: int) -> None:
    """Plain DDP."""
    print(f"Running basic DDP example on rank {rank}.")
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Linear(10, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    nn.functional.mse_loss(model(torch.randn(20, 10)), torch.randn(20, 5)).backward()
    optimizer.step()
    dist.destroy_process_group()


def demo_checkpoint(rank: int, path: Path) -> None:
    """A Run: the same script as under `samebits run`."""
    print(f"Running DDP checkpoint example on rank {rank}.")
    run = samebits.init(seed=0, lanes=2, threads=1)
    model = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    loader = DataLoader(TensorDataset(torch.randn(40, 10), torch.randn(40, 5)), batch_size=20)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for step in run.steps(loader):
        for inputs, labels in step:
            run.backward(nn.functional.mse_loss(model(inputs), labels))
        optimizer.step()
        optimizer.zero_grad()
    run.save_weights(model, path)
    fresh = nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5))
    samebits.load_weights(fresh, path)
    same = all(torch.equal(mine, saved) for mine, saved in zip(fresh.parameters(), model.parameters(), strict=True))
    print(f"rank {rank} has loaded what rank 0 saved: {same}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        samebits.spawn(demo_basic, nprocs=2, quiet=True)
        samebits.spawn(demo_checkpoint, args=(Path(folder) / "model.safetensors",), nprocs=2, quiet=True)
