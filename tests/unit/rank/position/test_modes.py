"""Which modules train and which parameters are frozen is carried from one process to the next."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from samebits.rank.position.preparations import Modes


def models() -> list[nn.Module]:
    return [nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), nn.Linear(2, 1)]


def test_what_was_switched_is_switched_again_and_the_rest_is_left_alone() -> None:
    then, now = models(), models()
    first = Modes.of(then)
    then[0][1].eval()
    then[0][0].weight.requires_grad_(False)
    now[1].bias.requires_grad_(False)  # the script's new beginning
    switched = Modes.read(Modes.of(then).since(first).told(), now)
    assert switched is not None
    switched.switch(now)
    assert [module.training for module in now[0]] == [True, False]
    assert [one.requires_grad for model in now for one in model.parameters()] == [False, True, True, True, True, False]


def test_nothing_is_told_of_what_nobody_switched() -> None:
    first = Modes.of(models())
    assert first.since(first).told() == {}


@pytest.mark.parametrize(
    "told",
    [
        [],
        {"other": {}},
        {"training": []},
        {"training": {"1.7": False}},
        {"trained": {"1.0.weight": 0}},
        {"trained": {"3.bias": True}},
    ],
)
def test_what_samebits_does_not_write_is_not_taken(told: Any) -> None:
    assert Modes.read(told, models()) is None
