"""Mistakes that only a GPU punishes, put into samebits on purpose: each is noticed on the pretended ones."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import samebits
from samebits.rank.data.device_copies import Copy, CopyStream
from samebits.rank.init.random_streams import Streams
from samebits.rank.strategy.pass_loss import DelayedValues
from samebits.rank.transport.device_sums import SlicedOnDevices
from samebits.rank.transport.gpu_ranks import GpuTransport
from samebits.testing.ranks import RankFailed, Started, run_ranks
from tests.scripts.scenarios import Cnn, train

pytestmark = pytest.mark.ranks


def wide():
    """Its gradients go in slices, not whole."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 10))


def nobody_waits_for_the_copying_stream():
    CopyStream.hand_over = lambda _, copy: copy.batch
    return train(Cnn)


def batches_stay_on_the_cpu():
    CopyStream.begin = lambda _, batch: Copy(None, batch, None)
    return train(Cnn)


def nobody_waits_for_sums():
    GpuTransport.wait = lambda *_: None
    return train(wide)


def a_bucket_is_reused_before_its_exchange_has_ended():
    original = SlicedOnDevices.__init__

    def begin(self, transport, exchange, partials, subtrees, out):
        original(self, transport, exchange, partials, subtrees, out)
        for partial in partials:
            partial.zero_()  # the sum will be written there anyway

    SlicedOnDevices.__init__ = begin
    return train(wide)


@pytest.mark.parametrize(
    ("mutant", "why"),
    [
        (nobody_waits_for_the_copying_stream, "Target -1 is out of bounds"),
        (
            batches_stay_on_the_cpu,
            "Input type .torch.FloatTensor. and weight type .torch.cuda.FloatTensor. should be the same",
        ),
        (a_bucket_is_reused_before_its_exchange_has_ended, "tensors were written to while they were being sent"),
    ],
)
def test_a_mistake_with_a_device_fails(mutant, why):
    with pytest.raises(RankFailed, match=why):
        run_ranks(mutant, Started(2))


def right():
    return train(wide)


def test_sums_that_nobody_waited_for_are_not_those_of_one_rank():
    [alone] = run_ranks(right, Started(1))
    assert run_ranks(right, Started(2)) == [alone] * 2
    try:
        early = run_ranks(nobody_waits_for_sums, Started(2))
    except RankFailed:
        return
    assert early != [alone] * 2


def losses(*, waits=True):
    if not waits:
        DelayedValues.read = lambda self: self._values.tolist()
    run = samebits.init(seed=1, lanes=2)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(torch.rand(8, 4), batch_size=4))
    found = []
    for step in run.steps(loader):
        for inputs in step:
            run.backward(model(inputs).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        found.append(step.loss)
    return found


def nobody_waits_for_losses():
    return losses(waits=False)


def test_losses_that_nobody_waited_for_are_no_numbers():
    for ranks in (1, 2):
        assert all(0 < loss < 100 for found in run_ranks(losses, Started(ranks)) for loss in found)
        with pytest.raises(RankFailed, match=r"A buffer .* was changed"):  # told beside the losses, in the same copy
            run_ranks(nobody_waits_for_losses, Started(ranks))


def only_the_cpu_is_seeded():
    enter = Streams.enter

    def enter_on_the_cpu(self, *where):
        has_gpus, self._has_gpus = self._has_gpus, False
        enter(self, *where)
        self._has_gpus = has_gpus

    Streams.enter = enter_on_the_cpu
    return train(Cnn)


def test_without_seeds_for_devices_the_bits_depend_on_the_ranks():
    [alone] = run_ranks(only_the_cpu_is_seeded, Started(1))
    assert run_ranks(only_the_cpu_is_seeded, Started(2)) != [alone] * 2
