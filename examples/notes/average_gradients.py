"""Data parallelism by hand (note d): all_reduce of every gradient, divided by the world size, against DDP.

    $ samebits run -n 2 --threads 1 examples/notes/average_gradients.py
    averaged after every backward: the bits of DDP: True
    averaged once per epoch: the ranks hold one model: False

The tutorial that the note cites averages after every `backward()`, not once per epoch. By the end of an
epoch the optimizer has taken its steps with each rank's own gradients, and every rank ends with a different model.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def average_gradients(model: nn.Module) -> None:
    """What DDP does in its backward hooks, bucket by bucket. Dividing first is what DDP does too."""
    for parameter in model.parameters():
        parameter.grad /= dist.get_world_size()
        dist.all_reduce(parameter.grad)


def train(way: str) -> torch.Tensor:
    """Two epochs of ten steps; all weights in one vector."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    wrapped = DistributedDataParallel(model) if way == "ddp" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shards = torch.randn(10, dist.get_world_size(), 32, 9)  # ten global batches, one row for each rank
    for _epoch in range(2):
        for shard in shards[:, dist.get_rank()]:
            optimizer.zero_grad()
            nn.functional.mse_loss(wrapped(shard[:, :8]), shard[:, 8:]).backward()
            if way == "every step":
                average_gradients(model)
            optimizer.step()
        if way == "once per epoch":
            average_gradients(model)
            optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def same_on_all_ranks(vector: torch.Tensor) -> bool:
    all_of_them = [torch.empty_like(vector) for _ in range(dist.get_world_size())]
    dist.all_gather(all_of_them, vector)
    return all(torch.equal(vector, other) for other in all_of_them)


dist.init_process_group("gloo")
by_hand, by_ddp, rarely = train("every step"), train("ddp"), train("once per epoch")
one_model = same_on_all_ranks(rarely)
if dist.get_rank() == 0:
    print(f"averaged after every backward: the bits of DDP: {torch.equal(by_hand, by_ddp)}")
    print(f"averaged once per epoch: the ranks hold one model: {one_model}")
dist.destroy_process_group()
