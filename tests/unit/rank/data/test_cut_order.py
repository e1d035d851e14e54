"""Steps that are cut when they are asked for are those of a list, and an order that is drawn at once is the sampler's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler, SequentialSampler, WeightedRandomSampler

from samebits.protocol.layout.cut import steps_of
from samebits.rank.data.order import CutOrder, EpochPlan, drawn_at_once

ORDER = [5, 3, 8, 1, 0, 9, 2, 7, 4, 6, 10]


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("batch_size", [1, 3, 4, 11, 20])
def test_its_steps_are_those_of_a_list(batch_size: int, drop_last: bool) -> None:
    lazy = EpochPlan(CutOrder.of(np.array(ORDER), batch_size, drop_last), batch_size)
    listed = EpochPlan(list(steps_of(ORDER, batch_size, drop_last)), batch_size)
    assert list(lazy.steps) == listed.steps
    assert lazy.steps == listed.steps
    assert all(type(index) is int for samples in lazy.steps for index in samples)
    assert (lazy.sizes, lazy.num_samples, len(lazy.steps)) == (listed.sizes, listed.num_samples, len(listed.steps))
    for first in range(len(lazy.steps) + 2):
        assert lazy.steps[first:] == listed.steps[first:]
        assert lazy.steps[:first] == listed.steps[:first]
        for low, high in ((0, batch_size), (1, 3), (2, 2)):
            assert list(lazy.between(low, high, first)) == list(listed.between(low, high, first))
    with pytest.raises(IndexError):
        lazy.steps[len(lazy.steps)]


def test_other_orders_and_other_steps_have_another_digest() -> None:
    plans = [EpochPlan(CutOrder(np.array(order), size), size) for order in (ORDER, ORDER[::-1]) for size in (3, 4)]
    assert len({plan.digest for plan in plans}) == 4
    assert EpochPlan(CutOrder(np.array(ORDER), 3), 3).digest == plans[0].digest


class Reversed(SequentialSampler):
    def __iter__(self):
        return iter(range(len(self.data_source) - 1, -1, -1))


SAMPLERS = {
    "random": lambda: RandomSampler(range(1000)),
    "in order": lambda: SequentialSampler(range(1000)),
    "some": lambda: RandomSampler(range(1000), num_samples=300),
    "more": lambda: RandomSampler(range(100), num_samples=250),
    "with replacement": lambda: RandomSampler(range(100), replacement=True),
    "own generator": lambda: RandomSampler(range(100), generator=torch.Generator()),
    "weighted": lambda: WeightedRandomSampler(torch.ones(10), 20),
    "own class": lambda: Reversed(range(10)),
    "list": lambda: [3, 1, 2],
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_an_order_that_is_drawn_at_once_is_the_samplers_and_leaves_the_same_random_numbers(name: str) -> None:
    sampler = SAMPLERS[name]()
    torch.manual_seed(5)
    found = drawn_at_once(sampler)
    after = torch.rand(3).tolist()
    assert (found is not None) == (name in ("random", "in order"))
    if found is not None:
        torch.manual_seed(5)
        assert found.tolist() == list(sampler)
        assert torch.rand(3).tolist() == after
