"""Loops that train something besides the model: right when it is prepared, a sentence when it is not."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import samebits
from samebits.testing.digests import digest_of
from tests.scripts.scenarios import digits


def begin(lanes=4):
    run = samebits.init(seed=3, lanes=lanes)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return run, model, optimizer, DataLoader(digits(), batch_size=32, shuffle=True)


def loop(run, loader, loss_of, *optimizers, after_lane=lambda images, labels: None):
    losses = []
    for step in run.steps(loader):
        for images, labels in step:
            run.backward(loss_of(images, labels))
            after_lane(images, labels)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(step.loss.hex())
    return losses


def center_loss(prepare, lanes=4):
    run, model, optimizer, loader = begin(lanes)
    centers = nn.Parameter(torch.randn(10, 10))
    other = torch.optim.SGD([centers], lr=0.5)
    if prepare:
        model, optimizer, loader, centers, other = run.prepare(model, optimizer, loader, centers, other)
    else:
        model, optimizer, loader = run.prepare(model, optimizer, loader)

    def loss_of(images, labels):
        out = model(images)
        return F.cross_entropy(out, labels) + 0.1 * (out - centers[labels]).pow(2).mean()

    losses = loop(run, loader, loss_of, optimizer, other)
    return {"losses": losses, "model": digest_of(model), "centers": digest_of(centers)}


def temperature(prepare, lanes=4):
    """A plain tensor with requires_grad, in the model's own optimizer and in none of its modules."""
    run, model, optimizer, loader = begin(lanes)
    scale = torch.ones((), requires_grad=True)
    other = torch.optim.Adam([scale], lr=0.01)
    things = [model, optimizer, loader, *([scale, other] if prepare else [])]
    model, optimizer, loader, *_ = run.prepare(*things)
    losses = loop(run, loader, lambda x, y: F.cross_entropy(model(x) * scale, y), optimizer, other)
    return {"losses": losses, "scale": scale.item().hex(), "state": digest_of(other)}


def several(prepare, lanes=4):
    """A list of parameters, and one more, in one optimizer with the model's."""
    run, model, _, loader = begin(lanes)
    more, bias = nn.ParameterList([torch.zeros(10), torch.ones(10)]), nn.Parameter(torch.zeros(10))
    optimizer = torch.optim.AdamW([*model.parameters(), *more, bias], lr=1e-2)
    model, optimizer, loader, *_ = run.prepare(model, optimizer, loader, *([more, bias] if prepare else []))
    losses = loop(run, loader, lambda x, y: F.cross_entropy(model(x) * more[1] + more[0] + bias, y), optimizer)
    return {"losses": losses, "bias": digest_of(bias), "state": digest_of(optimizer)}


def trained_copy(prepare, lanes=4):
    run, model, optimizer, loader = begin(lanes)
    student = copy.deepcopy(model)
    other = torch.optim.SGD(student.parameters(), lr=0.1)
    model, optimizer, loader, *_ = run.prepare(model, optimizer, loader, *([student, other] if prepare else []))

    def loss_of(images, labels):
        out = model(images)
        return F.cross_entropy(out, labels) + F.mse_loss(student(images), out.detach())

    return {"losses": loop(run, loader, loss_of, optimizer, other), "student": digest_of(student)}


def bare_backward_of_another(lanes=4):
    run, model, optimizer, loader = begin(lanes)
    probe = nn.Linear(64, 10)
    other = torch.optim.SGD(probe.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    loop(
        run,
        loader,
        lambda x, y: F.cross_entropy(model(x), y),
        optimizer,
        other,
        after_lane=lambda x, y: F.cross_entropy(probe(x.flatten(1)), y).backward(),
    )


def gradient_set_by_hand(lanes=4):
    run, model, optimizer, loader = begin(lanes)
    scale = torch.ones((), requires_grad=True)
    other = torch.optim.SGD([scale], lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, loader)

    def by_hand(images, labels):
        [scale.grad] = torch.autograd.grad((scale * images.mean()).square(), scale)

    loop(run, loader, lambda x, y: F.cross_entropy(model(x), y), optimizer, other, after_lane=by_hand)


def stepped_in_the_lane(lanes=4):
    run, model, optimizer, loader = begin(lanes)
    probe = nn.Linear(64, 10)
    other = torch.optim.SGD(probe.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, loader)

    def step(images, labels):
        F.cross_entropy(probe(images.flatten(1)), labels).backward()
        other.step()

    loop(run, loader, lambda x, y: F.cross_entropy(model(x), y), optimizer, after_lane=step)


def made_before_init(lanes=4):
    probe = nn.Linear(64, 10)
    other = torch.optim.SGD(probe.parameters(), lr=0.1)
    run, model, optimizer, loader = begin(lanes)
    model, optimizer, loader = run.prepare(model, optimizer, loader)

    def loss_of(images, labels):
        return F.cross_entropy(model(images) + probe(images.flatten(1)), labels)

    loop(run, loader, loss_of, optimizer, other)


def trained_on_a_share(lanes=4):
    run, model, optimizer, loader = begin(lanes)
    probe = nn.Linear(64, 10)
    other = torch.optim.SGD(probe.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for images, labels in loader:
        F.cross_entropy(probe(images.flatten(1)), labels).backward()
        other.step()


def unprepared_optimizer():
    """Of the prepared model: no matter who steps it, its gradients are complete."""
    run, model, optimizer, loader = begin(lanes=1)
    model, loader = run.prepare(model, loader)
    return {
        "losses": loop(run, loader, lambda x, y: F.cross_entropy(model(x), y), optimizer),
        "model": digest_of(model),
    }


def inner_loop():
    """A copy that lives and is trained inside one lane, and an outside model trained outside: both are fine."""
    before = nn.Linear(1, 1)
    of_before = torch.optim.SGD(before.parameters(), lr=0.1)
    run, model, optimizer, loader = begin()
    outside = nn.Linear(1, 1)
    other = torch.optim.SGD(outside.parameters(), lr=0.1)
    kept = nn.Linear(64, 16)
    of_kept = torch.optim.SGD(kept.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, loader)

    def loss_of(images, labels):
        fast, inner = copy.deepcopy((kept, of_kept))
        fast.load_state_dict(model[1].state_dict())
        for _ in range(2):
            inner.zero_grad()
            fast(images.flatten(1)).square().mean().backward()
            inner.step()
        pushed = 0 * (outside(torch.ones(1)) + before(torch.ones(1))).sum()
        return (
            F.cross_entropy(model(images), labels)
            + pushed
            + F.mse_loss(model[1](images.flatten(1)), fast(images.flatten(1)))
        )

    losses = []
    for _ in range(2):
        losses += loop(run, loader, loss_of, optimizer)
        for module, own in ((outside, other), (before, of_before)):
            own.zero_grad(set_to_none=False)
            module(torch.ones(1)).square().sum().backward()
            own.step()
    return {"losses": losses, "model": digest_of(model), "outside": digest_of(outside)}


def stepped_between_loops(is_late=False):
    """An outside model, made before `init` and trained between two loops, first before the first one, or not."""
    outside = nn.Linear(1, 1)
    other = torch.optim.SGD(outside.parameters(), lr=0.1)
    run, model, optimizer, loader = begin()
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    for turn in range(2):
        if turn or not is_late:
            outside(torch.ones(1)).square().sum().backward()
            other.step()
            other.zero_grad()
        loop(run, loader, lambda x, y: F.cross_entropy(model(x), y), optimizer)
