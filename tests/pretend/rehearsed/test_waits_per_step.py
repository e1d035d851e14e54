"""How often a step waits for its device. Each wait leaves a GPU without work; the numbers here may only fall.

A bare loop that reads no loss waits for nothing: `.item()`, a comparison, a copy to the host are what is counted. The
first steps are left out: the first four lanes are looked at more closely, and in the first step the optimizer makes its
state.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.testing.ranks import Started, run_ranks
from tests.pretend.ledger import Counts, counts_so_far
from tests.support.promises import promise

pytestmark = pytest.mark.ranks
STEPS = 4
FIRST = 6


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


class Masked(nn.Module):
    """Two buffers that nobody changes."""

    def __init__(self):
        super().__init__()
        self.body = mlp()
        self.register_buffer("mask", torch.ones(8, 8).tril().bool())
        self.register_buffer("scale", torch.ones(8, 8))

    def forward(self, images):
        return self.body(images * self.scale * self.mask)


def cnn():
    first = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    second = (nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(64, 10))


def since(before):
    counts = counts_so_far()
    counts.subtract(before)
    return counts


def nothing(run, model, step):
    """Do nothing with the gradients and the loss."""


def read(run, model, step):
    """Read the loss."""
    assert step.loss > 0


def clip(run, model, step):
    """Clip the gradients, and do not look at their norm."""
    run.clip_grad_norm_(model.parameters(), 1.0)


def waits_of_a_step(make, strategy, lanes, precision, between, passes):
    """What a step of this rank waits for on average, with the words of the ledger."""
    run = samebits.init(seed=0, lanes=lanes, precision=precision, strategy=strategy)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    num_samples = 16 * (FIRST + STEPS)
    data = TensorDataset(torch.randn(num_samples, 1, 8, 8), torch.randint(0, 10, (num_samples,)))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=16))
    before = Counts()
    for step in run.steps(loader):
        if step.number == FIRST:
            before = counts_so_far()
        for _ in range(passes):
            for images, labels in step:
                run.backward(F.cross_entropy(model(images), labels))
        between(run, model, step)
        optimizer.step()
        optimizer.zero_grad()
        if step.number == FIRST + STEPS - 1:
            counts = since(before)
            return counts.waits / STEPS, str(counts)
    raise AssertionError("too few steps")


def evaluate(make):
    """Evaluate twice; count in the second time."""
    run = samebits.init(seed=0, lanes=4)
    model = make()
    data = TensorDataset(torch.randn(64, 1, 8, 8), torch.randint(0, 10, (64,)))
    model, loader = run.prepare(model, DataLoader(data, batch_size=4))
    counts = Counts()
    for _ in range(2):
        before = counts_so_far()
        model.eval()
        wrong = torch.zeros((), device=run.device)
        with torch.no_grad():
            for images, labels in loader:
                wrong += (model(images).argmax(1) != labels).sum()
        counts = since(before)
    return counts.waits, str(counts)


@promise(
    "what-verify-proves",
    "On a GPU a step waits for nothing but what the script reads (counted on pretended GPUs)",
)
@pytest.mark.parametrize(
    ("make", "ranks", "strategy", "lanes", "precision", "between", "passes", "most"),
    [
        (mlp, 1, None, 1, "32", nothing, 1, 0),
        (mlp, 1, None, 1, "32", read, 1, 1),
        (mlp, 1, None, 4, "32", nothing, 3, 0),
        (mlp, 1, None, 4, "32", clip, 1, 1),
        (mlp, 2, None, 4, "32", nothing, 1, 0),
        (mlp, 2, "zero1", 4, "32", nothing, 1, 0),
        (mlp, 2, "zero1", 4, "32", clip, 1, 1),
        (Masked, 1, None, 4, "32", nothing, 1, 0),
        (Masked, 2, None, 4, "32", nothing, 1, 0),
        (cnn, 1, None, 4, "32", nothing, 1, 0),
        (cnn, 2, None, 4, "32", nothing, 1, 0),
        (cnn, 3, "zero1", 4, "32", read, 1, 1),
        (cnn, 1, None, 1, "16-mixed", nothing, 1, 1),
    ],
)
def test_a_step_waits_for_its_device_no_more_often_than_this(
    make, ranks, strategy, lanes, precision, between, passes, most
):
    given = (make, strategy, lanes, precision, between, passes)
    for waits, what in run_ranks(waits_of_a_step, Started(ranks, lanes=lanes), *given):
        assert waits <= most, f"{waits} waits per step; in {STEPS} steps: {what}"


@pytest.mark.parametrize(("make", "most"), [(mlp, 0), (Masked, 1), (cnn, 1)])
def test_an_evaluation_waits_no_more_often_than_this(make, most):
    for waits, what in run_ranks(evaluate, Started(2, lanes=4), make):
        assert waits <= most, what
