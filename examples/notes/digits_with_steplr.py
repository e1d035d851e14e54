"""The MNIST example with StepLR (note d) on scikit-learn's digits, its lines, and its bits on 1, 2 and 4 ranks.

    $ samebits run -n 1 examples/notes/digits_with_steplr.py --epochs 1
    $ samebits run -n 2 examples/notes/digits_with_steplr.py --epochs 1
    $ samebits run -n 4 examples/notes/digits_with_steplr.py --epochs 1
    Train Epoch: 1 [0/1437 (0%)]	Loss: ...
    Train Epoch: 1 [640/1437 (45%)]	Loss: ...
    Train Epoch: 1 [1280/1437 (89%)]	Loss: ...
    Test set: Average loss: ..., Accuracy: .../360 (...%)
    learning rate of the next epoch: 0.7
    bits ...

The three commands print the same loss to every digit, because four lanes are four lanes on one rank and on four.
"""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.testing.digests import digest_of

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--gamma", type=float, default=0.7)
options = parser.parse_args()

run = samebits.init(seed=1, lanes=4, threads=1)
digits = load_digits()
images, labels = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(digits.target)
model = nn.Sequential(
    *(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)),
    *(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 10)),
)
optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=options.gamma)
loader = DataLoader(TensorDataset(images[:1437], labels[:1437]), batch_size=64, shuffle=True)
test_loader = DataLoader(TensorDataset(images[1437:], labels[1437:]), batch_size=256)
model, optimizer, scheduler, loader, test_loader = run.prepare(model, optimizer, scheduler, loader, test_loader)

for epoch in run.epochs(options.epochs):
    model.train()
    for step in run.steps(loader):
        for pictures, targets in step:
            run.backward(F.cross_entropy(model(pictures), targets))
        optimizer.step()
        optimizer.zero_grad()
        if step.index % 10 == 0:
            seen = step.index * 64
            run.print(f"Train Epoch: {epoch + 1} [{seen}/1437 ({100 * seen / 1437:.0f}%)]\tLoss: {step.loss:.6f}")
    scheduler.step()

    model.eval()
    tally = run.tally()
    with torch.no_grad():
        for pictures, targets in test_loader:
            output = model(pictures)
            tally.add(loss=F.cross_entropy(output, targets), right=(output.argmax(1) == targets).float().mean())
    mean = tally.mean()
    right = round(mean["right"] * 360)
    run.print(f"Test set: Average loss: {mean['loss']:.4f}, Accuracy: {right}/360 ({100 * mean['right']:.0f}%)")
run.print(f"learning rate of the next epoch: {scheduler.get_last_lr()[0]:.1f}")
run.print(f"bits {digest_of(model, optimizer)}")
