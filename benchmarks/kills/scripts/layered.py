"""A plain stack of layers, in the loop that every strategy takes: zero1, stages and pipelines too."""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from benchmarks.kills import notes

run = samebits.init(seed=5, lanes=4, threads=1)
data = TensorDataset(torch.randn(240, 16), torch.randint(0, 4, (240,)))
model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.1))))
model.append(nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=12, shuffle=True))


def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return F.cross_entropy(model(x), y)


for _ in run.epochs(int(sys.argv[1]) // 20):
    for step in run.steps(loader):
        step.backward(loss_of)
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=step.loss)
        notes.ended(step.number)
run.save_state("end")
