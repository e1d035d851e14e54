"""A state holds the place in the epoch: a run that is stopped and resumed has the bits of one that was not."""

import torch
from torch import nn
from torch.utils.data import DataLoader

import samebits

run = samebits.init(seed=0, lanes=4, threads=1)
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
model, optimizer, loader = run.prepare(model, optimizer, DataLoader(range(16), batch_size=4, shuffle=True))
for _epoch in run.epochs(1):
    for step in run.steps(loader):
        for batch in step:
            run.backward(model(batch[:, None].float()).square().mean())
        optimizer.step()
        optimizer.zero_grad()
