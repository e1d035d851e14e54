"""25 samples in batches of 8: each once, in as many steps on every rank, and nobody waits."""

import torch
from torch import nn
from torch.utils.data import DataLoader

import samebits

run = samebits.init(seed=0, lanes=4, threads=1)
data = torch.randn(25, 4)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=8, shuffle=True))
for _epoch in run.epochs(1):
    for step in run.steps(loader):
        for x in step:
            run.backward(model(x).square().mean())
        optimizer.step()
        optimizer.zero_grad()
