"""A classifier that learns five digits, then all ten with its backbone unfrozen: a mask opens, an optimizer is made anew.

lockstep run -n 2 --name grown --save-every epoch examples/recipes/grown_classifier.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep

run = lockstep.init(seed=0, lanes=4)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
dataset = TensorDataset(images, torch.tensor(digits.target))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, 10)  # as wide as it will ever be
        self.register_buffer("hidden", torch.tensor([0.0] * 5 + [-torch.inf] * 5))  # classes to come

    def forward(self, batch):
        return self.head(self.backbone(batch)) + self.hidden


model = Classifier()
model.backbone.requires_grad_(False)
optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(dataset, batch_size=64, shuffle=True, drop_last=True)
model, optimizer, loader = run.prepare(model, optimizer, loader)

for epoch in run.epochs(6):
    trains_head_alone = len(optimizer.param_groups[0]["params"]) == 2
    if epoch >= 2 and trains_head_alone:  # not `epoch == 2`: a start that resumes in epoch 4 must come here too
        model.hidden.zero_()
        model.backbone.requires_grad_(True)
        optimizer = run.prepare(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    right = run.tally()
    for step in run.steps(loader):
        for x, y in step:
            logits, known = model(x), model.hidden[y] == 0
            run.backward((F.cross_entropy(logits, y.where(known, 0), reduction="none") * known).mean())
            right.add(accuracy=(logits.argmax(1) == y).float().mean())
        optimizer.step()
        optimizer.zero_grad()
    run.log(**right.mean())
