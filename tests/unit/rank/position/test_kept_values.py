"""`run.state`: values that can be saved, and that a loaded state replaces."""

from fractions import Fraction

import pytest
import torch

from samebits.errors import UsageError
from samebits.rank.position.kept_values import KeptValues, restore
from samebits.rank.position.preparations import MadeOptions


class Begun:
    def __init__(self):
        self.now = False

    def __call__(self):
        return self.now


def test_values_are_attributes():
    values = KeptValues(Begun(), MadeOptions(), lambda: False)
    values.best, values.names = 0.91, ("a", {"b": [None, True]})
    assert vars(values) == {"best": 0.91, "names": ("a", {"b": [None, True]})}
    del values.best
    assert not hasattr(values, "best")
    with pytest.raises(AttributeError, match=r"Assign a first one before the loop: run.state.best = 0."):
        _ = values.best


@pytest.mark.parametrize("value", [Fraction(1, 2), [object()], torch.nn.Linear(1, 1), print])
def test_what_cannot_be_saved_is_refused_at_the_assignment(value):
    values = KeptValues(Begun(), MadeOptions(), lambda: False)
    with pytest.raises(
        UsageError, match=r"run.state.best.* which cannot be saved without pickle.*run.track\(best="
    ) as caught:
        values.best = value
    assert caught.value.fix.startswith("Keep what it is made of")
    assert vars(values) == {}


def test_a_name_with_an_underscore_is_refused():
    with pytest.raises(UsageError, match="begins with an underscore"):
        KeptValues(Begun(), MadeOptions(), lambda: False)._best = 1


def test_a_loaded_value_replaces_the_first_one_in_place_where_others_may_hold_it():
    values = KeptValues(Begun(), MadeOptions(), lambda: False)
    values.best, values.losses, values.seen, values.mean = 0.0, [], {"a": 1}, torch.zeros(2)
    losses, seen, mean = values.losses, values.seen, values.mean
    values.new = 1
    saved = {"best": 0.9, "losses": [[1.0], 2.0], "seen": {"b": 2}, "mean": torch.ones(2), "other": 3}
    restore(values, saved)
    assert (values.best, losses, seen, mean.tolist(), values.other, values.new) == (
        0.9,
        [[1.0], 2.0],
        {"b": 2},
        [1, 1],
        3,
        1,
    )
    losses[0].append(5.0)
    assert saved["losses"] == [[1.0], 2.0]


def test_an_assignment_that_would_lose_a_loaded_value_is_refused_until_the_loop_begins():
    begun = Begun()
    values = KeptValues(begun, MadeOptions(), lambda: False)
    restore(values, {"best": 0.9})
    with pytest.raises(UsageError, match=r"run.state.best was loaded by run.load_state"):
        values.best = 0.0
    values.other = 1
    begun.now = True
    values.best = 1.0
    assert values.best == 1.0
