"""Hogwild in samebits (note c): the script of any strategy, on handwritten digits; ranks share one model, no locks.

    $ samebits run -n 2 --strategy hogwild examples/notes/hogwild_samebits.py
    every rank sees one model: True
    at least 80 % of the test pictures are right: True

Each rank makes its own updates from its share of every batch; what that means for learning rates, losses and optimizer
state is in docs/design/strategies.md#hogwild. Every run ends with different bits, and `samebits verify` says so.
"""

import hashlib

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits

run = samebits.init(seed=0, lanes=2, threads=1)
digits = load_digits()
images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(images[:1437], labels[:1437]), batch_size=64, shuffle=True)
test_loader = DataLoader(TensorDataset(images[1437:], labels[1437:]), batch_size=256)
model, optimizer, loader, test_loader = run.prepare(model, optimizer, loader, test_loader)

for _epoch in run.epochs(8):
    for step in run.steps(loader):
        for pictures, targets in step:
            run.backward(F.cross_entropy(model(pictures), targets))
        optimizer.step()
        optimizer.zero_grad()

tally = run.tally()
with torch.no_grad():
    for pictures, targets in test_loader:
        tally.add(right=(model(pictures).argmax(1) == targets).float().mean())
right = tally.mean()["right"]
weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
digest = hashlib.sha256(weights).hexdigest()
run.print(f"every rank sees one model: {run.all(run.broadcast(digest) == digest)}")
run.print(f"at least 80 % of the test pictures are right: {right >= 0.8}")
