"""What a call changed of a model's Python state is found, wherever it is; what it did not change is not."""

import itertools
import random
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn

from samebits.rank.strategy.stages.cutting.module_marks import StatePlace, changed, marks_of

COUNTS = {"calls": 0}


def outer():
    counted = [0]

    class Closed(nn.Module):
        def forward(self):
            counted[0] += 1

    return Closed()


class Everything(nn.Module):
    total = 0

    def __init__(self):
        super().__init__()
        self.part = nn.Linear(2, 2)
        self.number, self.ratio, self.words = 0, 0.5, ["a"]
        self.nested = {"deep": [{"x": 1}]}
        self.queue = deque([1, 2], maxlen=2)
        self.thing = Thing()
        self.bank, self.array = torch.zeros(2), np.zeros(2)
        self.own, self.other = torch.Generator().manual_seed(1), random.Random(1)
        self.itself = self.nested
        self.nested["itself"] = self.nested
        self.numbers = itertools.count()


class Thing:
    def __init__(self):
        self.calls = 0


CHANGES = {
    "number": lambda m: setattr(m, "number", 1),
    "ratio": lambda m: setattr(m, "ratio", 0.25),
    "words": lambda m: m.words.append("b"),
    "nested": lambda m: m.nested["deep"][0].update(x=2),
    "queue": lambda m: m.queue.append(2),
    "thing": lambda m: setattr(m.thing, "calls", 1),
    "bank": lambda m: m.bank.add_(1),
    "array": lambda m: np.add(m.array, 1, out=m.array),
    "own": lambda m: torch.rand(1, generator=m.own),
    "other": lambda m: m.other.random(),
    "new": lambda m: setattr(m, "new", None),
}


@pytest.mark.parametrize("name", list(CHANGES))
def test_a_change_is_found_and_nothing_else(name):
    model = Everything()
    before = marks_of(model)
    assert changed(before, marks_of(model)) == [StatePlace("", "numbers")]  # nobody can see how far an iterator is
    CHANGES[name](model)
    found = set(changed(before, marks_of(model))) - {StatePlace("", "numbers")}
    assert found == {StatePlace("", name)} | ({StatePlace("", "itself")} if name == "nested" else set())
    assert not set(changed({}, marks_of(model, [StatePlace("", "words")]))) - {StatePlace("", "words")}


def test_attributes_of_parts_and_classes_and_variables_of_functions_are_looked_at():
    model = Everything()
    before = marks_of(model)
    model.part.calls = 1
    Everything.total += 1
    try:
        assert set(changed(before, marks_of(model))) >= {
            StatePlace("part", "calls"),
            StatePlace(None, "Everything.total"),
        }
    finally:
        Everything.total = 0
    closed = outer()
    before = marks_of(closed)
    closed()
    assert [str(place) for place in changed(before, marks_of(closed))] == ["outer.<locals>.Closed.forward.counted"]


def test_a_global_that_forward_names_is_looked_at():
    class Counts(nn.Module):
        def forward(self):
            COUNTS["calls"] += 1

    model = Counts()
    before = marks_of(model)
    model()
    assert [place.name.rpartition(".")[2] for place in changed(before, marks_of(model))] == ["COUNTS"]


def test_parameters_and_buffers_are_left_to_others():
    model = nn.BatchNorm1d(2)
    before = marks_of(model)
    model(torch.randn(4, 2)).sum().backward()
    assert changed(before, marks_of(model)) == []
