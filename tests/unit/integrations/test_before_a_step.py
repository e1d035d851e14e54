"""When a hyperparameter may change in the loop over a step's batches."""

from __future__ import annotations

import pytest
import torch

from samebits.errors import UsageError
from samebits.integrations.before_a_step import Rates

CHANGED = r"lr of an optimizer was changed between two batches"


@pytest.fixture
def optimizer() -> torch.optim.Optimizer:
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(2))], lr=0.1)


@pytest.fixture
def rates(optimizer: torch.optim.Optimizer) -> Rates:
    rates = Rates(lambda: [optimizer])
    rates.begin()
    return rates


def set_lr(optimizer: torch.optim.Optimizer, value: float) -> None:
    optimizer.param_groups[0]["lr"] = value


def test_a_script_that_knows_steps_sets_them_in_the_first_batch_or_behind_the_last(
    optimizer: torch.optim.Optimizer, rates: Rates
) -> None:
    set_lr(optimizer, 0.2)
    rates.at_backward(is_first=True)
    rates.end(knows_steps=True, is_last=False)
    rates.at_backward(is_first=False)
    set_lr(optimizer, 0.3)
    rates.end(knows_steps=True, is_last=True)


@pytest.mark.parametrize(("knows_steps", "is_last"), [(False, True), (False, False), (True, False)])
def test_behind_any_other_batch_it_is_refused(
    optimizer: torch.optim.Optimizer, rates: Rates, knows_steps: bool, is_last: bool
) -> None:
    rates.at_backward(is_first=True)
    set_lr(optimizer, 0.2)
    with pytest.raises(UsageError, match=CHANGED):
        rates.end(knows_steps=knows_steps, is_last=is_last)


def test_before_the_loss_of_a_later_batch_it_is_refused(optimizer: torch.optim.Optimizer, rates: Rates) -> None:
    rates.at_backward(is_first=True)
    rates.end(knows_steps=True, is_last=False)
    set_lr(optimizer, 0.2)
    with pytest.raises(UsageError, match=CHANGED):
        rates.at_backward(is_first=False)


def test_a_script_that_counts_batches_may_not_set_them_before_its_loss_either(
    optimizer: torch.optim.Optimizer, rates: Rates
) -> None:
    set_lr(optimizer, 0.2)
    rates.at_backward(is_first=True)
    with pytest.raises(UsageError, match=CHANGED):
        rates.end(knows_steps=False, is_last=True)


def test_what_prepared_objects_change_is_no_change_of_the_script(
    optimizer: torch.optim.Optimizer, rates: Rates
) -> None:
    rates.at_backward(is_first=True)
    with rates.own():
        set_lr(optimizer, 0.2)
    rates.end(knows_steps=False, is_last=True)


def test_a_rate_in_a_tensor_counts_too(optimizer: torch.optim.Optimizer, rates: Rates) -> None:
    optimizer.param_groups[0]["lr"] = rate = torch.tensor(0.1)
    rates.begin()
    rates.at_backward(is_first=True)
    rate.fill_(0.2)
    with pytest.raises(UsageError, match=CHANGED):
        rates.end(knows_steps=False, is_last=True)
