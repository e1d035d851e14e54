"""A backbone is unfrozen with an optimizer of its own: the run and every resumed start of it have the same bits."""

import os

import pytest
import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

import samebits
from samebits.testing.digests import digest_of
from samebits.testing.ranks import Started, run_ranks
from tests.scripts import scenarios
from tests.support.promises import promise

pytestmark = pytest.mark.ranks


def train(place, stop_after=None, at_step=0, once=False, beside=False, strategy="ddp"):
    """Three epochs of three steps; from the second epoch, or from step `at_step` on, all layers are trained."""
    os.chdir(place)
    run = samebits.init(seed=3, lanes=4, threads=1, strategy=strategy, name="exp1", save_every="1steps")
    model = scenarios.mlp()
    layers = [one for one in model.children() if list(one.parameters())]
    layers[0].requires_grad_(False)
    optimizer = torch.optim.SGD(layers[1].parameters(), lr=0.1, momentum=0.9)
    optimizers = [optimizer]
    loader = DataLoader(scenarios.digits(96), batch_size=32, shuffle=True)
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    scheduler = None

    def unfreeze():
        nonlocal scheduler
        layers[0].requires_grad_(True)
        parameters = layers[0].parameters() if beside else model.parameters()
        late = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
        run.prepare(late)
        scheduler = run.prepare(StepLR(late, 2))
        optimizers[:] = [*optimizers, late] if beside else [late]

    for epoch in run.epochs(3):
        if not at_step and scheduler is None and (epoch == 1 if once else epoch >= 1):
            unfreeze()
        for step in run.steps(loader):
            if stop_after is not None and step.number > stop_after:
                return None
            if at_step and scheduler is None and step.number >= at_step:
                unfreeze()
            step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
            for one in optimizers:
                one.step()
                one.zero_grad()
            if scheduler is not None:
                scheduler.step()
    return digest_of(model), [group["lr"] for one in optimizers for group in one.param_groups]


def _train(place, options):
    return train(place, **options)


@promise(
    "save-and-resume",
    "Optimizers, schedulers, models and groups that are prepared between steps are in every state from then on",
    also=["test_a_run_whose_model_grows_resumes_with_the_same_bits"],
)
@pytest.mark.parametrize(
    "how",
    [
        {},
        pytest.param({"at_step": 5, "beside": True}, marks=pytest.mark.thorough),
        pytest.param({"strategy": "zero1"}, marks=pytest.mark.thorough),
        pytest.param({"at_step": 5, "strategy": "zero1", "beside": True}, marks=pytest.mark.thorough),
        pytest.param({"beside": True}, marks=pytest.mark.thorough),
    ],
    ids=str,
)
@pytest.mark.thorough
def test_a_run_with_a_late_optimizer_resumes_with_the_same_bits(tmp_path, how):
    straight = tmp_path / "straight"
    straight.mkdir()
    expected = run_ranks(_train, Started(1), str(straight), {**how, "strategy": "ddp"})
    for after in (4, 6, 8) if how else (4, 7):
        place = tmp_path / f"after-{after}"
        place.mkdir()
        run_ranks(_train, Started(2), str(place), {**how, "stop_after": after})
        assert run_ranks(_train, Started(2), str(place), how) == expected * 2


@promise("save-and-resume", "A start that resumes and lacks an optimizer of its state is stopped before its first step")
def test_a_resumed_start_that_lacks_a_late_optimizer_is_stopped_before_its_first_step(tmp_path):
    run_ranks(_train, Started(1), str(tmp_path), {"once": True, "stop_after": 7})
    with pytest.raises(AssertionError, match="UsageError") as refused:
        run_ranks(_train, Started(1), str(tmp_path), {"once": True})
    assert "optimizer2, scheduler1" in str(refused.value)


@pytest.mark.parametrize("strategy", ["model_parallel", "hogwild"])
def test_a_strategy_that_cannot_take_a_late_optimizer_says_so(tmp_path, strategy):
    with pytest.raises(AssertionError, match=f"which {strategy} does not allow"):
        run_ranks(_train, Started(2), str(tmp_path), {"strategy": strategy})


def step_the_first(place):
    os.chdir(place)
    run = samebits.init(seed=3, lanes=2, threads=1)
    model = scenarios.mlp()
    first = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(scenarios.digits(32), batch_size=32)
    model, first, loader = run.prepare(model, first, loader)
    for step in run.steps(loader):
        run.prepare(torch.optim.SGD(model.parameters(), lr=0.2))
        step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
        first.step()


def test_an_optimizer_that_was_replaced_steps_no_more(tmp_path):
    with pytest.raises(AssertionError, match="was replaced by one that was prepared later"):
        run_ranks(step_the_first, Started(1), str(tmp_path))
