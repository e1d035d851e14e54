"""Two heads, of which each step uses one: what a single process does without a word ends DDP in its second step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.heads = nn.Linear(4, 8), nn.ModuleList([nn.Linear(8, 1), nn.Linear(8, 1)])

    def forward(self, x, head):
        return self.heads[head](self.body(x))


dist.init_process_group("gloo")
model = DistributedDataParallel(TwoHeads())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    model(torch.randn(8, 4), step % 2).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
