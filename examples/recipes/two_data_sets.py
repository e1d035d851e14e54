"""Two loaders of different length (FixMatch): each labelled sample brings unlabelled ones along.

samebits run -n 2 examples/recipes/two_data_sets.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

import samebits

digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
UNLABELLED, LABELLED, TEST = slice(1200), slice(1200, 1300), slice(1300, None)


class WithUnlabelled(Dataset):
    """A labelled sample and `ratio` unlabelled ones, drawn with replacement."""

    def __init__(self, labelled, unlabelled, ratio):
        self.labelled, self.unlabelled, self.ratio = labelled, unlabelled, ratio

    def __len__(self):
        return len(self.labelled[0])

    def __getitem__(self, index):
        others = self.unlabelled[torch.randint(len(self.unlabelled), (self.ratio,))]
        return self.labelled[0][index], self.labelled[1][index], others


def strong(batch):
    """A strong augmentation: noise and missing pixels."""
    return (batch + 0.2 * torch.randn_like(batch)) * (torch.rand_like(batch) > 0.2)


run = samebits.init(seed=0, lanes=4, threads=1)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
data = WithUnlabelled((images[LABELLED], labels[LABELLED]), images[UNLABELLED], ratio=7)
model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=32, shuffle=True))

for _epoch in run.epochs(15):
    for step in run.steps(loader):
        for x, y, drawn in step:
            others = drawn.flatten(0, 1)
            with torch.no_grad():
                sure, guess = model(others).softmax(1).max(1)
            each = F.cross_entropy(model(strong(others)), guess, reduction="none")
            unsupervised = each * (sure > 0.9)
            run.backward(F.cross_entropy(model(x), y) + unsupervised.mean())
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=step.loss)
with torch.no_grad():
    accuracy = (model(images[TEST]).argmax(1) == labels[TEST]).float().mean()  # all of it, on every rank
run.log(accuracy=float(accuracy))
