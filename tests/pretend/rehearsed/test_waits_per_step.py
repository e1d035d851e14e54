"""How often a step waits for its device. Each wait leaves a GPU without work; the numbers here may only fall.

A bare loop that reads no loss waits for nothing: `.item()`, a comparison, a copy to the host are what is counted. The
first steps are left out: the first four are looked at more closely, and in the first the optimizer makes its state.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep
from lockstep.testing.ranks import Started, run_ranks
from tests.pretend.ledger import Counts, counts_so_far

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


def waits_of_a_step(make, lanes, precision):
    """What a step of this rank waits for on average, with the words of the ledger."""
    run = lockstep.init(seed=0, lanes=lanes, precision=precision)
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    data = TensorDataset(torch.randn(16 * (FIRST + STEPS), 1, 8, 8), torch.randint(0, 10, (16 * (FIRST + STEPS),)))
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data, batch_size=16))
    before = Counts()
    for step in run.steps(loader):
        if step.number == FIRST:
            before = counts_so_far()
        for images, labels in step:
            run.backward(F.cross_entropy(model(images), labels))
        optimizer.step()
        optimizer.zero_grad()
        if step.number == FIRST + STEPS - 1:
            counts = counts_so_far()
            counts.subtract(before)
            return counts.waits / STEPS, str(counts)
    raise AssertionError("too few steps")


@pytest.mark.parametrize(
    ("make", "ranks", "lanes", "precision", "most"),
    [
        (mlp, 1, 1, "32", 1),
        (mlp, 1, 4, "32", 1),
        (mlp, 2, 4, "32", 1),
        (mlp, 1, 1, "16-mixed", 2),
        (Masked, 1, 1, "32", 3),
        (cnn, 1, 1, "32", 1),
        (cnn, 1, 4, "32", 13),
        (cnn, 2, 4, "32", 9),
        (cnn, 1, 1, "bf16-mixed", 1),
        (cnn, 1, 1, "16-mixed", 2),
    ],
)
def test_a_step_waits_for_its_device_no_more_often_than_this(make, ranks, lanes, precision, most):
    for waits, what in run_ranks(waits_of_a_step, Started(ranks, lanes=lanes), make, lanes, precision):
        assert waits <= most, f"{waits} waits per step; in {STEPS} steps: {what}"
