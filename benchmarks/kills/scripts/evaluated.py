"""A small convolutional network with BatchNorm, dropout and an evaluation at the end of each epoch."""

import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from benchmarks.kills import notes

run = samebits.init(seed=0, lanes=4, threads=1)
images = torch.randn(200, 1, 8, 8)
labels = images.mean((1, 2, 3)).gt(0).long()
data = TensorDataset(images, labels, torch.arange(len(images)))
model = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(8 * 36, 2)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(data, batch_size=16, shuffle=True)
held_out = DataLoader(TensorDataset(images[:50], labels[:50]), batch_size=16)
model, optimizer, loader, held_out = run.prepare(model, optimizer, loader, held_out)
for _ in run.epochs(int(sys.argv[1]) // len(loader)):
    model.train()
    for step in run.steps(loader):
        for x, y, numbers in step:
            notes.samples(step.number, numbers.tolist())
            run.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=step.loss)
        notes.ended(step.number)
    model.eval()
    tally = run.tally()
    with torch.no_grad():
        for x, y in held_out:
            tally.add(accuracy=(model(x).argmax(1) == y).float().mean())
    run.log(**tally.mean())
run.save_state("end")
