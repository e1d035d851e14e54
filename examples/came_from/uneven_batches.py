"""Rank 1 has a batch more than rank 0 (a file of a shard, a sample that was filtered out), and waits for its gradient."""

import datetime as dt

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", timeout=dt.timedelta(seconds=3))  # 30 minutes, if nobody says so
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3 + dist.get_rank()):
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
print("done")
