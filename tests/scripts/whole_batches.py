"""Losses over the whole batch, in lanes; and the same by plain PyTorch on one device."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import samebits
from samebits.testing.digests import digest_of
from tests.scripts.scenarios import digits


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16))
        self.temperature = nn.Parameter(torch.tensor(0.5))

    def forward(self, images):
        return F.normalize(self.body(images), dim=1)


def two_views(model, batch):
    images, labels = batch
    return model(images), model(images.flip(-1)), labels


def contrast(model, features):
    """CLIP's loss: each sample's two views belong together, and those of other samples do not."""
    left, right, labels = features
    scores = left @ right.t() / model.temperature
    truth = torch.arange(len(left))
    assert len(labels) == len(left)
    return (F.cross_entropy(scores, truth) + F.cross_entropy(scores.t(), truth)) / 2


def train(lanes=4, batch_size=30, precision=None, norm=False, drops=False):
    """Steps of 30 and a short one; with `norm` and `drops` a model with BatchNorm and dropout."""
    run = samebits.init(seed=3, lanes=lanes, precision=precision)
    model = Encoder()
    if norm:
        model.body.insert(2, nn.BatchNorm1d(32))
    if drops:
        model.body.append(nn.Dropout(0.2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(digits(100), batch_size))
    losses = []
    for _ in range(2):
        for step in run.steps(loader):
            step.backward(lambda batch: two_views(model, batch), over_batch=lambda features: contrast(model, features))
            optimizer.step()
            optimizer.zero_grad()
            losses.append(step.loss.hex())
    values = [p.tolist() for p in model.parameters()]
    return {"losses": losses, "model": digest_of(model), "optimizer": digest_of(optimizer), "values": values}


def plain():
    """The same steps without samebits."""
    samebits.init(seed=3)
    model = Encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(2):
        for batch in DataLoader(digits(100), 30):
            loss = contrast(model, two_views(model, batch))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses, [p.tolist() for p in model.parameters()]


def with_other_losses():
    """A pass over the whole batch and one of lanes add up; the first function may log."""
    run = samebits.init(seed=3, lanes=4)
    model, head = Encoder(), nn.Linear(16, 10)
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
    model, head, optimizer, loader = run.prepare(model, head, optimizer, DataLoader(digits(100), 32, shuffle=True))
    norms = []
    for step in run.steps(loader):

        def features_of(batch):
            found = two_views(model, batch)
            run.log(size=found[0].norm())
            return {"left": found[0], "right": found[1], "labels": found[2]}

        step.backward(features_of, over_batch=lambda found: contrast(model, tuple(found.values())))
        step.backward(lambda batch: F.cross_entropy(head(model(batch[0])), batch[1]))
        norms.append(run.clip_grad_norm_(model.parameters(), 1.0).hex())
        optimizer.step()
        optimizer.zero_grad()
    return {"model": digest_of(model), "head": digest_of(head), "norms": norms}


def partly_without_gradient():
    """Only some lanes have features that need a gradient, and one of three steps has a lane fewer than ranks."""
    run = samebits.init(seed=3, lanes=4)
    model = Encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(digits(65), 32))
    for step in run.steps(loader):

        def features_of(batch, step=step):
            with torch.set_grad_enabled(step.lane % 2 == 1):
                return two_views(model, batch)

        step.backward(features_of, over_batch=lambda features: contrast(model, features))
        optimizer.step()
        optimizer.zero_grad()
    return digest_of(model)


def wrong(what):
    run = samebits.init(seed=3, lanes=4)
    model = Encoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(digits(100), 32))
    for step in run.steps(loader):
        if what == "a number":
            step.backward(lambda batch: 1.0, over_batch=lambda features: features.sum())
        if what == "a scalar":
            step.backward(lambda batch: model(batch[0]).sum(), over_batch=lambda features: features.sum())
        if what == "no scalar":
            step.backward(lambda batch: model(batch[0]), over_batch=lambda features: features.sum(0))
        if what == "other shapes":
            step.backward(
                lambda batch, step=step: model(batch[0])[:, : 4 + step.lane], over_batch=lambda features: features.sum()
            )
        step.backward(lambda batch: model(batch[0]), over_batch=lambda features: features.square().sum())
        optimizer.step()
