"""Six steps with all that a state may hold. Saves a state after the second epoch; the command saves others by itself."""

import random
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.testing.digests import digest_of


def prepared(run):
    """Model, optimizer, scheduler and loader."""
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Dropout(0.1), nn.Linear(4, 2))
    weights, biases = model[0].parameters()
    optimizer = torch.optim.AdamW([{"params": [weights]}, {"params": [biases, *model[1:].parameters()], "lr": 0.02}])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    inputs = torch.arange(120.0).sin().reshape(24, 5)
    loader = DataLoader(TensorDataset(inputs, inputs[:, :2].argmax(1)), batch_size=8, shuffle=True)
    return run.prepare(model, optimizer, scheduler, loader)


def train(run, model, optimizer, scheduler, loader, state=None):
    for epoch in run.epochs(3):
        for step in run.steps(loader):
            step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=step.loss, drawn=random.random() + np.random.rand() + torch.rand(1).item())
        scheduler.step()
        if state is not None and epoch == 1:
            run.save_state(state, best=torch.ones(3), counted={"words": (1, 2)})


def resumed(path):
    """Go on from a state, on any number of ranks: what it held, and the bits at the end."""
    run = samebits.init(seed=0, lanes=4, threads=1)
    model, optimizer, scheduler, loader = prepared(run)
    held = run.load_state(path)
    loaded = digest_of(model, optimizer, held.pop("best"))
    train(run, model, optimizer, scheduler, loader)
    return {"held": held, "loaded": loaded, "at the end": digest_of(model, optimizer)}


if __name__ == "__main__":
    run = samebits.init(seed=0, lanes=4, threads=1)
    train(run, *prepared(run), state=Path("state"))
