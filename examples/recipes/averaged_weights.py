"""Stochastic weight averaging: update_bn makes the average's BatchNorm statistics anew.

samebits run -n 2 examples/recipes/averaged_weights.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader, TensorDataset

import samebits

digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
train_set, test_set = TensorDataset(images[:1400], labels[:1400]), TensorDataset(images[1400:], labels[1400:])

run = samebits.init(seed=0, lanes=4, threads=1)
model = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
average = AveragedModel(model)
loader, test_loader = DataLoader(train_set, batch_size=64, shuffle=True), DataLoader(test_set, batch_size=128)
model, average, optimizer, scheduler, loader, test_loader = run.prepare(
    model, average, optimizer, scheduler, loader, test_loader
)

for _epoch in run.epochs(4):
    for step in run.steps(loader):
        for x, y in step:
            run.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=step.loss)
    average.update_parameters(model)
    scheduler.step()

# A loader that was not prepared: every rank sees all of it.
update_bn(DataLoader(train_set, batch_size=256), average)
average.eval()
tally = run.tally()
with torch.no_grad():
    for x, y in test_loader:
        tally.add(accuracy=(average(x).argmax(1) == y).float().mean())
run.log(**tally.mean())
