"""Schedulers that nobody prepared, wherever they are made: the run and every resumed start of it have the same rates and bits."""

import os

import pytest
import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, OneCycleLR, SequentialLR, StepLR
from torch.utils.data import DataLoader

import samebits
from samebits.testing.digests import digest_of
from samebits.testing.ranks import Started, run_ranks
from tests.scripts import scenarios
from tests.support.promises import promise

pytestmark = pytest.mark.ranks


def warm_up(optimizer):
    return LinearLR(optimizer, start_factor=1e-3, total_iters=5)


def in_two_parts(optimizer):
    return SequentialLR(optimizer, [warm_up(optimizer), CosineAnnealingLR(optimizer, 8)], [3])


def one_cycle(optimizer):
    return OneCycleLR(optimizer, 0.2, total_steps=20)


class Wrapped(StepLR):
    """What it holds has no place in a state."""

    def __init__(self, optimizer):
        self.function = lambda: 1
        super().__init__(optimizer, 2)


def train(place, make, where, stop_after=None, save="1steps", prepares=False):
    """Three epochs of three steps on the rates of `make`, called at `where`."""
    os.chdir(place)
    run = samebits.init(seed=3, lanes=4, threads=1, name="exp1", save_every=save)
    model = scenarios.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(scenarios.digits(96), batch_size=32, shuffle=True)
    taken = run.prepare if prepares else lambda one: one
    scheduler, rates = (make(optimizer) if where == "before prepare" else None), []
    model, optimizer, loader = run.prepare(model, optimizer, loader)
    if where == "before the loop":
        scheduler = make(optimizer)

    def epoch_with(scheduler):
        for step in run.steps(loader):
            if stop_after is not None and step.number > stop_after:
                raise StopIteration
            if where == "between steps" and scheduler is None and step.number >= 5:
                scheduler = taken(make(optimizer))
            step.backward(lambda batch: F.cross_entropy(model(batch[0]), batch[1]))
            optimizer.step()
            optimizer.zero_grad()
            rates.append(optimizer.param_groups[0]["lr"])
            if scheduler is not None:
                scheduler.step()
        return scheduler

    try:
        for epoch in run.epochs(3):
            if where == "in the first epoch":
                epoch_with(taken(make(optimizer)) if epoch == 0 else None)
            elif where == "in each epoch":
                scheduler = make(optimizer)
                epoch_with(scheduler)
            elif where == "from the second epoch on":
                scheduler = taken(make(optimizer)) if scheduler is None and epoch >= 1 else scheduler
                epoch_with(scheduler)
            else:
                scheduler = epoch_with(scheduler)
    except StopIteration:
        return None
    return digest_of(model), rates[-1]


def _train(place, make, options):
    return train(place, make, **options)


PLACES = [
    "before prepare",
    "before the loop",
    "in the first epoch",
    "in each epoch",
    "from the second epoch on",
    "between steps",
]


OFTEN = ("in the first epoch", "in each epoch")


@promise("save-and-resume", "Schedulers of prepared optimizers are in every state unasked, wherever they are made")
@pytest.mark.parametrize(
    "where", [pytest.param(where, marks=[pytest.mark.thorough] * (where not in OFTEN)) for where in PLACES]
)
@pytest.mark.parametrize(
    ("make", "save"),
    [
        (warm_up, "1steps"),
        pytest.param(warm_up, "epoch", marks=pytest.mark.thorough),
        pytest.param(in_two_parts, "1steps", marks=pytest.mark.thorough),
        pytest.param(one_cycle, "1steps", marks=pytest.mark.thorough),
    ],
)
@pytest.mark.thorough
def test_a_run_resumes_with_the_rates_of_schedulers_that_nobody_prepared(tmp_path, where, make, save):
    straight = tmp_path / "straight"
    straight.mkdir()
    expected = run_ranks(_train, Started(1), str(straight), make, {"where": where})
    for after in (2, 8) if (where, save) == ("in each epoch", "epoch") else (2, 4, 8):
        place = tmp_path / f"after-{after}"
        place.mkdir()
        run_ranks(_train, Started(2), str(place), make, {"where": where, "stop_after": after, "save": save})
        assert run_ranks(_train, Started(2), str(place), make, {"where": where, "save": save}) == expected * 2, after


def test_whether_each_epoch_makes_a_scheduler_is_not_guessed_after_the_first_one(tmp_path):
    options = {"where": "in each epoch", "save": "epoch"}
    run_ranks(_train, Started(1), str(tmp_path), warm_up, {**options, "stop_after": 4})
    with pytest.raises(AssertionError, match="cannot say whether this is another one"):
        run_ranks(_train, Started(1), str(tmp_path), warm_up, options)


def test_a_start_that_makes_another_scheduler_than_the_state_has_is_stopped_before_its_first_step(tmp_path):
    run_ranks(_train, Started(1), str(tmp_path), warm_up, {"where": "in the first epoch", "stop_after": 2})
    with pytest.raises(AssertionError, match="UsageError") as refused:
        run_ranks(_train, Started(1), str(tmp_path), one_cycle, {"where": "in the first epoch"})
    assert "(LinearLR) that the body of its epoch had made, and this start has made OneCycleLR" in str(refused.value)


def test_a_scheduler_whose_state_cannot_be_written_is_in_no_state_and_fails_none(tmp_path):
    options = {"where": "before the loop"}
    assert run_ranks(_train, Started(1), str(tmp_path), Wrapped, {**options, "stop_after": 4}) == [None]
    [(_, rate)] = run_ranks(_train, Started(1), str(tmp_path), Wrapped, options)
    assert rate > 0


@pytest.mark.parametrize(
    "where",
    [
        "in the first epoch",
        pytest.param("from the second epoch on", marks=pytest.mark.thorough),
        pytest.param("between steps", marks=pytest.mark.thorough),
    ],
)
def test_a_scheduler_that_is_prepared_late_leaves_the_rates_of_the_state(tmp_path, where):
    straight = tmp_path / "straight"
    straight.mkdir()
    options = {"where": where, "prepares": True}
    expected = run_ranks(_train, Started(1), str(straight), warm_up, options)
    for after in (2,) if where == "in the first epoch" else (4, 6, 8):
        place = tmp_path / f"after-{after}"
        place.mkdir()
        run_ranks(_train, Started(2), str(place), warm_up, {**options, "stop_after": after})
        assert run_ranks(_train, Started(2), str(place), warm_up, options) == expected * 2, after
