"""A classifier that learns five digits, then all ten: its head grows, its backbone is unfrozen, its optimizer is made anew.

samebits run -n 2 --name grown --save-every epoch examples/recipes/grown_classifier.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits

run = samebits.init(seed=0, lanes=4)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
dataset = TensorDataset(images, torch.tensor(digits.target))

model = nn.Sequential()
model.backbone = nn.Sequential(nn.Linear(64, 64), nn.ReLU()).requires_grad_(False)
model.head = nn.Linear(64, 5)
optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(dataset, batch_size=64, shuffle=True, drop_last=True)
model, optimizer, loader = run.prepare(model, optimizer, loader)


def grown(old, classes):
    """A wider head that begins with what the old one has learned."""
    new = nn.Linear(old.in_features, classes)
    with torch.no_grad():
        new.weight[: old.out_features] = old.weight
        new.bias[: old.out_features] = old.bias
    return new


for epoch in run.epochs(6):
    # Not `epoch == 2`: a resumed start comes here too.
    if epoch >= 2 and model.head.out_features == 5:
        model.head = run.prepare(grown(model.head, 10))
        model.backbone.requires_grad_(True)
        optimizer = run.prepare(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    right = run.tally()
    for step in run.steps(loader):
        for x, y in step:
            logits, known = model(x), y < model.head.out_features
            run.backward((F.cross_entropy(logits, y.where(known, 0), reduction="none") * known).mean())
            right.add(accuracy=(logits.argmax(1) == y).float().mean())
        optimizer.step()
        optimizer.zero_grad()
    run.log(**right.mean())
