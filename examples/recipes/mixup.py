"""Mixup over the whole data: the partner of a sample is drawn in the data set, not in the batch.

samebits run -n 2 examples/recipes/mixup.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

import samebits

digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)


class Mixup(Dataset):
    """Each sample is mixed with one that is drawn from all, by a part that is drawn too."""

    def __init__(self, images, labels, alpha):
        self.images, self.labels = images, F.one_hot(labels).float()
        self.part = torch.distributions.Beta(alpha, alpha)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        partner, part = int(torch.randint(len(self), ())), self.part.sample()
        both = self.images, self.labels
        return tuple(torch.lerp(each[partner], each[index], part) for each in both)


run = samebits.init(seed=0, lanes=4, threads=1)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = DataLoader(Mixup(images, labels, alpha=0.4), batch_size=64, shuffle=True)
model, optimizer, loader = run.prepare(model, optimizer, loader)

for _epoch in run.epochs(3):
    for step in run.steps(loader):
        for x, y in step:
            run.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=step.loss)
