"""A step that is computed again has the rates of its first time, or the run ends."""

from pathlib import Path

import pytest
import torch

from samebits.errors import UsageError
from samebits.rank.position import rates
from samebits.rank.position.rates import CALLS, STEPS, Rates


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def start() -> Rates:
        monkeypatch.setattr(rates, "_opened", iter([1]))
        made = Rates()
        made.open(tmp_path)
        return made

    return start


def groups(*each):
    return [{"lr": one} for one in each]


def test_the_same_rates_may_come_again_and_others_may_not(opened):
    first = opened()
    for step in range(1, 10):
        first.check(step, groups(step / 3, torch.tensor(0.5)))
    again = opened()
    again.check(8, groups(8 / 3, torch.tensor(0.5)))
    with pytest.raises(UsageError, match="Step 9 is computed again with another rate than the first time: 1, not 3"):
        again.check(9, groups(1.0, torch.tensor(0.5)))
    with pytest.raises(UsageError, match="another one in a later group"):
        opened().check(9, groups(3.0, torch.tensor(0.25)))
    again.check(10, groups(7.0))


def test_only_the_last_steps_and_some_calls_of_each_are_kept(opened):
    first = opened()
    for _ in range(CALLS + 3):
        first.check(1, groups(0.1))
    again = opened()
    for number in range(CALLS + 3):
        again.check(1, groups(0.1 if number < CALLS else number))
    first.check(1 + STEPS, groups(0.2))
    opened().check(1, groups(9.0))


def test_without_a_folder_nothing_is_kept():
    Rates().check(1, groups(0.1))
    Rates().check(1, groups(0.2))
