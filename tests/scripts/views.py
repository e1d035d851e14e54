"""Scripts that took views of parameters and buffers before `run.prepare`.

Each returns hashes, and whether its views still show. They run under every strategy that can keep the memory, on any
number of ranks.
"""

import copy

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import samebits
from samebits.testing.digests import digest_of
from tests.scripts.scenarios import digits


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def train(model, after_step=lambda: None, epochs=2, between=lambda _: None):
    run = samebits.init(seed=3, lanes=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loader = DataLoader(digits(), batch_size=32, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for epoch in run.epochs(epochs):
        between(epoch)
        for step in run.steps(loader):
            for images, labels in step:
                run.backward(F.cross_entropy(model(images), labels))
            optimizer.step()
            optimizer.zero_grad()
            after_step()
    return {"model": digest_of(model), "optimizer": digest_of(optimizer)}


def seeded(make):
    torch.manual_seed(1)
    return make()


def shows(views, tensors):
    return all(torch.equal(torch.as_tensor(view), tensor) for view, tensor in zip(views, tensors, strict=True))


def polyak_pairs():
    model = seeded(mlp)
    target = copy.deepcopy(model)
    pairs = [(t.data, p.data) for t, p in zip(target.parameters(), model.parameters(), strict=True)]

    def average():
        for t, p in pairs:
            t.mul_(0.9).add_(p, alpha=0.1)

    told = train(model, average)
    return told | {"target": digest_of(target), "shows": shows([p for _, p in pairs], model.parameters())}


def foreach_lerp():
    model = seeded(mlp)
    target = copy.deepcopy(model)
    mine, theirs = [p.detach() for p in model.parameters()], [p.detach() for p in target.parameters()]
    told = train(model, lambda: torch._foreach_lerp_(theirs, mine, 0.1))
    return told | {"target": digest_of(target), "shows": shows(mine, model.parameters())}


def numpy_views():
    model = seeded(mlp)
    arrays = [p.detach().numpy() for p in [*model.parameters(), *model.buffers()]]
    norms = []
    told = train(model, lambda: norms.append(float(np.linalg.norm(arrays[0]))))
    return told | {"norms": norms, "shows": shows(arrays, [*model.parameters(), *model.buffers()])}


def cut_from_one_flat():
    model = seeded(mlp)
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    parts = flat.split([p.numel() for p in model.parameters()])
    for p, part in zip(model.parameters(), parts, strict=True):
        p.data = part.view_as(p)

    def decay():
        flat.mul_(0.999)

    told = train(model, decay)
    whole = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return told | {"flat": digest_of(flat), "shows": shows([flat], [whole])}


class Tied(nn.Module):
    """Uses the values of a weight in another place, without its gradient."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 10)
        self.w = self.first.weight.data

    def forward(self, images):
        return self.last(F.relu(self.first(images.flatten(1)) @ self.w.t()))


def a_weights_data_as_an_attribute():
    model = seeded(Tied)
    told = train(model)
    return told | {"shows": shows([model.w], [model.first.weight])}


def buffers_by_views():
    model = seeded(mlp)
    mean, count = model[2].running_mean[:8], model[2].num_batches_tracked.view(1)
    told = train(model)
    return told | {
        "mean": mean.tolist(),
        "count": int(count),
        "shows": shows([mean, count], [model[2].running_mean[:8], model[2].num_batches_tracked.view(1)]),
    }


def shared_with_another_process():
    model = seeded(mlp).share_memory()
    context = torch.multiprocessing.get_context("fork")
    ask, answer = context.Pipe()
    watcher = context.Process(target=_evaluate, args=(model, answer), daemon=True)
    watcher.start()
    told = train(model)
    ask.send("now")
    seen = ask.recv()
    watcher.join()
    return told | {"seen": seen, "shows": seen == [float(p.detach().double().sum()) for p in model.parameters()]}


def _evaluate(model, answer):
    answer.recv()
    answer.send([float(p.detach().double().sum()) for p in model.parameters()])


class WithAside(nn.Module):
    """Also returns something that no loss may use."""

    def __init__(self):
        super().__init__()
        self.body, self.aside, self.head = nn.Linear(64, 16), nn.Linear(16, 4), nn.Linear(16, 10)

    def forward(self, images):
        seen = self.body(images.flatten(1)).relu()
        return self.head(seen), self.aside(seen)


def unused_result():
    """The graph of a result that no backward goes through is alive when the model is cut."""
    run = samebits.init(seed=3, lanes=4)
    model = WithAside()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(digits(), batch_size=32))
    losses = []
    for step in run.steps(loader):
        for images, labels in step:
            out, aside = model(images)
            run.backward(F.cross_entropy(out, labels))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(step.loss.hex())
    assert aside is not None
    return losses


def from_numpy():
    model = seeded(mlp)
    array = model[1].weight.detach().numpy().copy()
    model[1].weight = nn.Parameter(torch.from_numpy(array))
    told = train(model)
    return told | {"shows": shows([array], [model[1].weight])}


def views_taken_while_training():
    """A layer that comes later makes a new layout; what was there stays where it is."""
    model = seeded(mlp)
    views = []

    def between(epoch):
        if epoch == 1:
            views.extend(p.data for p in model.parameters())
            views.extend(b.data for b in model.buffers())
            model.append(nn.Linear(10, 10))

    told = train(model, epochs=3, between=between)
    return told | {"shows": shows(views, [*list(model.parameters())[:6], *model.buffers()])}


def num_that_stay():
    run = samebits.init(seed=3, lanes=4)
    run.prepare(seeded(mlp))
    return len(run._run.components.strategy.layout.stay)
