"""What runs in the ranks of `memory`: some steps, and then what /proc says about this process."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import lockstep
from benchmarks.in_rank.contestants import adamw

SIZES = (1024, 4096, 4096, 4096, 1024, 10)
STEPS, BATCH = 4, 16


def network() -> nn.Module:
    """42 M parameters."""
    torch.manual_seed(0)
    return nn.Sequential(*(layer for a, b in pairwise(SIZES) for layer in (nn.Linear(a, b), nn.ReLU())))


def samples(count: int) -> TensorDataset:
    return TensorDataset(torch.randn(count, SIZES[0]), torch.randint(SIZES[-1], (count,)))


def stock_steps() -> Iterator[int]:
    """DDP with Gloo; the number of parameters after each update."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(network(), gradient_as_bucket_view=True)
    optimizer = adamw(model)
    for inputs, targets in DataLoader(samples(STEPS * BATCH), batch_size=BATCH):
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        yield sum(p.numel() for p in model.parameters())
        optimizer.zero_grad()


def our_steps() -> Iterator[int]:
    """The same on our engine."""
    run = lockstep.init(seed=0)
    loader = DataLoader(samples(STEPS * BATCH * run.world_size), batch_size=BATCH * run.world_size)
    model = network()
    model, optimizer, loader = run.prepare(model, adamw(model), loader)
    for step in run.steps(loader):
        for inputs, targets in step:
            run.backward(F.cross_entropy(model(inputs), targets))
        optimizer.step()
        yield sum(p.numel() for p in model.parameters())
        optimizer.zero_grad()


def pss_bytes(text: str) -> int:
    """The proportional set size in the text of smaps_rollup."""
    line = next(line for line in text.splitlines() if line.startswith("Pss:"))
    return int(line.split()[1]) << 10


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--side", choices=("ours", "stock"), required=True)
    parser.add_argument("--to", type=Path, required=True)
    options = parser.parse_args()

    parameters = 0
    steps = our_steps() if options.side == "ours" else stock_steps()
    for _ in range(STEPS):
        parameters = next(steps)
    dist.barrier()  # until now nobody has given its gradients back
    total = torch.tensor(float(pss_bytes(Path("/proc/self/smaps_rollup").read_text())), dtype=torch.float64)
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        options.to.write_text(json.dumps({"pss_bytes": total.item(), "parameters": parameters}))
    dist.barrier()
    steps.close()  # type: ignore[attr-defined]
    if options.side == "stock":
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
