"""Two heads, of which each step uses one. A parameter without a gradient is no error, and needs no option."""

import torch
from torch import nn
from torch.utils.data import DataLoader

import samebits


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.heads = nn.Linear(4, 8), nn.ModuleList([nn.Linear(8, 1), nn.Linear(8, 1)])

    def forward(self, x, head):
        return self.heads[head](self.body(x))


run = samebits.init(seed=0, lanes=4, threads=1)
model = TwoHeads()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = run.prepare(model, optimizer, DataLoader(torch.randn(32, 4), batch_size=8))
for step in run.steps(loader, epochs=1):
    for x in step:
        run.backward(model(x, step.index % 2).square().mean())
    optimizer.step()
    optimizer.zero_grad()
