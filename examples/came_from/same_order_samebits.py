"""`shuffle=True`, as on one device: every epoch has an order of its own, whatever the number of processes."""

import torch
from torch.utils.data import DataLoader

import samebits

run = samebits.init(seed=0, lanes=4, threads=1)
weight = torch.nn.Parameter(torch.zeros(()))
optimizer = torch.optim.SGD([weight], lr=0.1)
weight, optimizer, loader = run.prepare(weight, optimizer, DataLoader(range(16), batch_size=8, shuffle=True))
for epoch in run.epochs(3):
    for step in run.steps(loader):
        made = []
        for numbers in step:
            made.append(numbers)
            run.backward((weight - numbers).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        whole = run.lane_cat(made).tolist()
        if step.index == 0:
            run.print(f"epoch {epoch} begins with {whole}")
