"""Gradients of three steps are added up before each update."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from benchmarks.kills import notes

run = samebits.init(seed=1, lanes=4, threads=1)
data = TensorDataset(torch.randn(192, 16), torch.arange(192))
model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Dropout(0.2), nn.Linear(64, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=8, shuffle=True))
for _ in run.epochs(int(sys.argv[1]) // 24):
    for step in run.steps(loader):
        for x, numbers in step:
            notes.samples(step.number, numbers.tolist())
            run.backward(F.mse_loss(model(x), x) / 3)
        if step.number % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
        run.log(loss=step.loss)
        notes.ended(step.number)
run.save_state("end")
