"""A toy model under DDP, in the shape of pytorch/examples' distributed/ddp; written for samebits's tests."""

import json
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class ToyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net2(self.relu(self.net1(x)))


def main() -> None:
    environment = {
        name: os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE")
    }
    print(f"[{os.getpid()}] Initializing process group with: {environment}")
    dist.init_process_group(backend="gloo")
    rank = dist.get_rank()
    assert (dist.get_world_size(), rank) == (2, int(environment["RANK"]))
    torch.manual_seed(rank)  # DDP begins with rank 0's model
    model = DistributedDataParallel(ToyModel())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    samples, labels = torch.randn(20, 10), torch.randn(20, 5)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(samples), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    everyone = [torch.empty_like(weights) for _ in range(2)]
    dist.all_gather(everyone, weights)
    assert torch.equal(*everyone)
    assert losses[-1] < losses[0]
    if rank == 0:
        print("peer", json.dumps({"first": losses[0], "last": losses[-1], "weights": weights.norm().item()}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
