"""An order that is drawn as it goes is the one that torch's sampler yields, wherever one begins to read."""

from itertools import islice

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from samebits.errors import UsageError
from samebits.rank.data import drawn_order
from samebits.rank.data.drawn_order import DrawnOrder
from samebits.rank.data.order import EpochPlan, plan_epoch
from tests.support.promises import promise


def sampler_of(size, replacement, num_samples):
    return RandomSampler(range(size), replacement=replacement, num_samples=num_samples)


def drawn(sampler, batch_size, drop_last=False):
    torch.manual_seed(7)
    return DrawnOrder.of(sampler, batch_size, drop_last)


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize(("replacement", "num_samples"), [(True, 1000), (True, 128), (False, 1000), (False, 290)])
def test_it_is_the_order_of_torchs_sampler(monkeypatch, replacement, num_samples, drop_last):
    monkeypatch.setattr(drawn_order, "PIECE", 64)
    sampler = sampler_of(97, replacement, num_samples)
    torch.manual_seed(7)
    expected = list(BatchSampler(sampler, 12, drop_last))
    order = drawn(sampler, 12, drop_last)
    assert list(order) == expected
    assert order.sizes == [*map(len, expected)]
    assert len(order) == len(expected)
    # Far apart, so that pieces in between are forgotten.
    for place in (len(expected) - 1, 0, len(expected) // 2, -2):
        assert order[place] == expected[place]
    assert list(order[3:9]) == expected[3:9]
    assert order[5:].between(2, 7).tolist() == [one for step in expected[5:] for one in step[2:7]]


@promise(
    "save-and-resume",
    "RandomSampler with any `num_samples` begins at once, in torch's own order",
    also=["test_it_is_the_order_of_torchs_sampler"],
)
def test_ten_thousand_million_samples_begin_at_once_and_differ_by_their_seed():
    data = TensorDataset(torch.zeros(256))
    loader = DataLoader(data, batch_size=32, sampler=RandomSampler(data, replacement=True, num_samples=10**10))
    plans = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        plans.append(plan_epoch(loader))
    assert len(plans[0].steps) == 312_500_000
    assert plans[0].num_samples == 10**10
    assert plans[0].digest == plans[1].digest != plans[2].digest
    torch.manual_seed(7)
    assert plans[0].steps[0] == [*islice(iter(loader.sampler), 32)]


class Endless(torch.utils.data.Sampler):
    def __len__(self):
        return 10**10

    def __iter__(self):
        while True:
            yield 0


def test_another_sampler_without_end_is_refused_with_its_number():
    loader = DataLoader(TensorDataset(torch.zeros(256)), batch_size=32, sampler=Endless())
    with pytest.raises(UsageError, match="Endless names 10,000,000,000 samples"):
        plan_epoch(loader)


def test_a_samplers_own_order_comes_back_from_a_state_as_it_was():
    plan = EpochPlan([[3, 1], [2, 2], [0]], 2, is_own=True)
    assert plan.packed is not None
    again = EpochPlan.unpacked(plan.packed)
    assert (again.steps, again.digest, again.batch_size) == (plan.steps, plan.digest, plan.batch_size)
    assert EpochPlan([[(1, "a")]], 1, is_own=True).packed is None
    assert EpochPlan([[1]], 1).packed is None
