"""Which schedulers that nobody prepared a state holds, and which of them a start that resumes has made again."""

import gc
import weakref

import pytest
import torch
from torch.optim.lr_scheduler import ChainedScheduler, LinearLR, OneCycleLR, SequentialLR, StepLR

from samebits.errors import UsageError
from samebits.rank.position.epoch_count import EpochCount
from samebits.rank.position.made_schedulers import MadeScheduler, MadeSchedulers, kept, paired
from samebits.rank.position.preparations import options_of


@pytest.fixture
def optimizer():
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)


@pytest.fixture
def made(optimizer):
    held = []
    found = MadeSchedulers(EpochCount(), lambda: held, lambda one: one is optimizer)
    found.test_held = held
    yield found.watch()
    found.remove()
    before = found.num
    StepLR(optimizer, 3)
    assert found.num == before


def kinds(made):
    return [type(one.here).__name__ for one in made.here()]


def test_those_of_prepared_optimizers_are_held_as_long_as_they_live(made, optimizer):
    other = StepLR(torch.optim.SGD([torch.zeros(1)], lr=0.1), 1)
    linear, step = LinearLR(optimizer), StepLR(optimizer, 3)
    assert kinds(made) == ["LinearLR", "StepLR"]
    made.test_held.append(step)
    assert kinds(made) == ["LinearLR"]
    del linear
    assert kinds(made) == []
    assert other.optimizer is not optimizer


def test_one_that_consists_of_others_stands_for_them(made, optimizer):
    sequential = SequentialLR(optimizer, [LinearLR(optimizer), StepLR(optimizer, 3)], [2])
    assert kinds(made) == ["SequentialLR"]
    chained = ChainedScheduler([LinearLR(optimizer), StepLR(optimizer, 3)])
    assert kinds(made) == ["SequentialLR", "ChainedScheduler"]
    assert sequential.optimizer is chained.optimizer


def test_one_of_an_earlier_body_that_nobody_steps_is_held_no_more(made, optimizer):
    epochs = made.epochs.epochs(4)
    next(epochs)
    made.enter_body()
    warm = StepLR(optimizer, 3)
    assert made.record()[0]["again"]
    optimizer.step()
    warm.step()
    for expected in (["StepLR"], []):
        next(epochs)
        made.enter_body()
        assert kinds(made) == expected
    warm.step()
    assert kinds(made) == ["StepLR"]


def test_what_a_constructor_wrote_is_taken_back(made, optimizer):
    made.loaded = made.num
    one_cycle = OneCycleLR(optimizer, 0.5, total_steps=9)
    assert optimizer.param_groups[0]["lr"] != 0.1
    made.undo_writes([optimizer])
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert "max_lr" not in optimizer.param_groups[0]
    assert one_cycle.optimizer is optimizer


def alive(scheduler):
    return MadeScheduler(weakref.ref(scheduler), 1, 0, (1, 1), None, options_of(scheduler))


def saved(scheduler, *, again=False):
    return {"class": type(scheduler).__name__, "made_with": options_of(scheduler), "again": again}


def test_a_body_makes_all_again_or_its_own(optimizer):
    old, new = StepLR(optimizer, 3), LinearLR(optimizer)
    record = [saved(old), saved(new, again=True)]
    pairs, left = paired(record, [alive(old), alive(new)], runs_again=True)
    assert ([part for _, part in pairs], left) == (record, [])
    pairs, left = paired(record, [alive(new)], runs_again=True)
    assert ([part for _, part in pairs], left) == (record[1:], ["StepLR"])
    for others in ([], [alive(old)], [alive(LinearLR(optimizer, total_iters=7))]):
        gc.collect()
        with pytest.raises(UsageError):
            paired(record, others, runs_again=True)


def test_between_epochs_another_one_begins_anew(optimizer):
    old, new = StepLR(optimizer, 3), LinearLR(optimizer)
    assert paired([saved(old)], [alive(new)], runs_again=False) == ([], ["StepLR"])
    assert paired([saved(old)], [], runs_again=False) == ([], ["StepLR"])
    assert len(paired([saved(old)], [alive(old)], runs_again=False)[0]) == 1


def test_where_each_body_makes_its_own_a_state_between_two_has_none(optimizer):
    record = [saved(StepLR(optimizer, 3)), saved(LinearLR(optimizer), again=True)]
    assert kept(record, [3, 3], runs_again=False) == record[:1]
    assert kept(record, [3, 3], runs_again=True) == record
    assert [one["again"] for one in kept(record, [3, 1], runs_again=False)] == [False, False]
    assert [one["again"] for one in kept(record, [1, 1], runs_again=False)] == [False, True]
