"""A loss that compares all samples of a batch (SimCLR, CLIP): features in lanes, the loss over the batch.

samebits run -n 2 examples/recipes/contrastive.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits

digits = load_digits()
images, labels = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)


def two_views(batch):
    """The projections of two noisy views of each sample: (lane's samples, 32) each."""
    (x,) = batch
    return [F.normalize(model(x + 0.3 * torch.randn_like(x)), dim=1) for _ in range(2)]


def info_nce(views):
    """SimCLR's loss: here the two views are those of the whole batch, (batch, 32) each."""
    left, right = views
    scores = left @ right.T / 0.2
    return F.cross_entropy(scores, torch.arange(len(left)))


run = samebits.init(seed=0, lanes=4, threads=1)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
loader = DataLoader(TensorDataset(images), batch_size=256, shuffle=True, drop_last=True)
model, optimizer, loader = run.prepare(model, optimizer, loader)

for _epoch in run.epochs(5):
    for step in run.steps(loader):
        step.backward(two_views, over_batch=info_nce)
        optimizer.step()
        optimizer.zero_grad()
        run.log(loss=step.loss)
