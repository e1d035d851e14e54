"""Convolutions, a norm, and functions of the C library, with bits that are the same on every x86-64 CPU."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from benchmarks.kills import notes

run = samebits.init(seed=6, lanes=4, threads=1, numerics="portable")
data = TensorDataset(torch.randn(240, 1, 8, 8), torch.randint(0, 4, (240,)))
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.GELU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(512, 4)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=12, shuffle=True))

for _ in run.epochs(int(sys.argv[1]) // 20):
    for step in run.steps(loader):
        for x, y in step:
            run.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=step.loss)
        notes.ended(step.number)
run.save_state("end")
