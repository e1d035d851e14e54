"""Cross-validation: a model, an optimizer and loaders of its own for each of k folds, and the mean of their scores.

samebits run -n 2 examples/recipes/folds.py
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import KFold
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

import samebits

FOLDS, EPOCHS = 3, 4

digits = load_digits()
data = TensorDataset(torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target))

run = samebits.init(seed=0, lanes=4, threads=1)
run.state.scores = {}  # what is behind a fold, a resumed start does not come to again
for fold, (train, test) in enumerate(KFold(FOLDS, shuffle=True, random_state=0).split(data)):
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    loader = DataLoader(Subset(data, train), batch_size=64, shuffle=True)
    test_loader = DataLoader(Subset(data, test), batch_size=128)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=EPOCHS * len(loader))
    model, optimizer, scheduler, loader, test_loader = run.prepare(model, optimizer, scheduler, loader, test_loader)
    for _epoch in run.epochs(EPOCHS):
        for step in run.steps(loader):
            for x, y in step:
                run.backward(F.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        tally = run.tally()
        with torch.no_grad():
            for x, y in test_loader:
                tally.add(accuracy=(model(x).argmax(1) == y).float())
        # The last epoch's stays.
        run.state.scores = {**run.state.scores, fold: tally.mean()["accuracy"]}

run.log(accuracy=sum(run.state.scores.values()) / FOLDS)
