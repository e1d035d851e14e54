"""A toy model cut by column and row, in the shape of pytorch/examples' distributed/tensor_parallelism; our own.

`python tensor_parallel.py` has the same input on both ranks; with `--sequence` each has its own samples (sequence
parallelism). Both are compared with the model on one rank.
"""

import copy
import json
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class ToyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.in_proj = nn.Linear(10, 32)
        self.relu = nn.ReLU()
        self.out_proj = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out_proj(self.relu(self.in_proj(x)))


def main(sequence: bool) -> None:
    mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))  # which initialises torch.distributed
    rank = mesh.get_rank()
    assert mesh.size() == 2
    torch.manual_seed(0)
    model = ToyModel()
    alone = copy.deepcopy(model)
    layouts = ({"input_layouts": Shard(0)}, {"output_layouts": Shard(0)}) if sequence else ({}, {})
    plan = {"in_proj": ColwiseParallel(**layouts[0]), "out_proj": RowwiseParallel(**layouts[1])}
    model = parallelize_module(model, mesh, plan)
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.05, foreach=True) for each in (model, alone)]
    for step in range(10):
        whole = torch.rand(20, 10, generator=torch.Generator().manual_seed(step))
        mine = whole.chunk(2)[rank] if sequence else whole
        model(mine).square().sum().backward()
        alone(whole).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for found, expected in zip(model.parameters(), alone.parameters(), strict=True):
        full = found.full_tensor() if hasattr(found, "full_tensor") else found
        torch.testing.assert_close(full, expected, rtol=1e-3, atol=1e-4)
    if rank == 0:
        print("peer", json.dumps({"norm": model.in_proj.weight.to_local().norm().item()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main("--sequence" in sys.argv)
