"""How many operations a step starts on its device beyond the bare loop's; the numbers here may only fall.

Each is some microseconds of the host, which a small step on a GPU waits for. The bare loop computes the same micro-batches.
"""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import samebits
from samebits.testing.ranks import Started, run_ranks
from tests.pretend.ledger import Counts, counts_so_far
from tests.pretend.rehearsed.test_waits_per_step import FIRST, STEPS, cnn, mlp, since

pytestmark = pytest.mark.ranks


def made(make):
    model = make().to("cuda")
    return model, torch.optim.AdamW(model.parameters(), foreach=True)


def data():
    num_samples = 16 * (FIRST + STEPS)
    return TensorDataset(torch.randn(num_samples, 1, 8, 8), torch.randint(0, 10, (num_samples,)))


def kernels_of_a_bare_step(make, lanes):
    """Of a loop over micro-batches, which adds up their gradients."""
    (model, optimizer), before = made(make), Counts()
    for number, batch in enumerate(DataLoader(data(), batch_size=16)):
        if number == FIRST:
            before = counts_so_far()
        for images, labels in zip(*(torch.chunk(one, lanes) for one in batch), strict=True):
            loss = F.cross_entropy(model(images.to("cuda", non_blocking=True)), labels.to("cuda", non_blocking=True))
            (loss / lanes).backward()
        optimizer.step()
        optimizer.zero_grad()
    return since(before)


def kernels_of_a_step(make, lanes):
    """Of this rank's steps and of the bare loop's, with their names."""
    bare = kernels_of_a_bare_step(make, lanes)
    run = samebits.init(seed=0, lanes=lanes)
    (model, optimizer), before = made(make), Counts()
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(data(), batch_size=16))
    for step in run.steps(loader):
        if step.index == FIRST:
            before = counts_so_far()
        for images, labels in step:
            run.backward(F.cross_entropy(model(images), labels))
        optimizer.step()
        optimizer.zero_grad()
    ours = since(before)
    more = Counts(ours)
    more.subtract(bare)
    words = ", ".join(f"{number / STEPS:+g} {what}" for what, number in sorted(more.items()) if number)
    return ours.kernels / STEPS, bare.kernels / STEPS, words


@pytest.mark.every_row
@pytest.mark.parametrize(
    ("make", "lanes", "most"),
    [(mlp, 1, 0), (mlp, 4, 10), (cnn, 1, 1), (cnn, 4, 92)],
)
def test_a_step_starts_no_more_operations_beyond_the_bare_loops_than_this(make, lanes, most):
    [(ours, bare, words)] = run_ranks(kernels_of_a_step, Started(1, lanes=lanes), make, lanes)
    assert ours - bare <= most, f"{ours:g} beside {bare:g}: {words}"
