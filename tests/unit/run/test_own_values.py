"""What a script keeps by itself is found wherever it keeps it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Sampler, TensorDataset

from lockstep.run.watch import holdings
from lockstep.run.watch.own_values import OwnChanges, OwnValues


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of test modules lie beside this script, and whatever they hold would be walked in each look."""
    monkeypatch.setattr(holdings, "_FOREIGN", set(sys.modules))


START = """
import argparse, collections, functools, itertools, types
import numpy as np
import torch
class Meter:
    total = 0.0
    def __init__(self):
        self.sum, self.parts = 0.0, []
    def update(self, value):
        self.sum += value
    @classmethod
    def count(cls):
        cls.total += 1

def counter():
    n = 0
    def count():
        nonlocal n
        n += 1
    return count

def count_globally():
    global calls
    calls += 1

class Slots:
    __slots__ = ("n", "__m")
    def __init__(self):
        self.n = self.__m = 0
    def count(self):
        self.__m += 1

class Trainer:
    teacher, epochs, epoch = None, 0, 0
    def see(self, value):
        if not hasattr(self, "lazy"):
            self.lazy = value
    def begin(self, epoch):
        self.epoch = epoch
    def count(self):
        self.epochs += 1

def append(values, value): values.append(value)
def filled(value, seen=[]): seen.append(value)
def counted(): counted.n += 1
counted.n = 0
def averaged(average=torch.optim.swa_utils.AveragedModel(torch.nn.Linear(1, 1))): average.n_averaged += 1
def closed():
    seen = []
    return lambda value: seen.append(value)
def rates():
    rate = 1.0
    while True:
        yield rate
        rate *= 0.9
close, part, draw = closed(), functools.partial(append, []), np.random.default_rng(1).random
numbers, iterator, cycle, generator = itertools.count(), iter([1, 2, 3, 4, 5, 6]), itertools.cycle("ab"), rates()
places, parts = iter(range(9)), itertools.islice(range(9), 5)
values, _values, queue, tally = [], [], collections.deque(), collections.Counter()
zeros, table, large = torch.zeros(3), np.zeros(3), np.zeros(1 << 21)
args, space, slots, trainer = argparse.Namespace(lr=1.0), types.SimpleNamespace(n=0), Slots(), Trainer()
itself = []
itself.append(itself)
calls, count, old, held = 0, counter(), Meter(), {"a": [Meter()]}
for epoch in range(2):
    body()
    new = Meter()
    old.parts = []
    BODY
    steps()
    for step in range(2):
        STEP
    look()
"""


def found(tmp_path: Path, step: str, body: str = "pass") -> list[str]:
    """What is told at the end of each epoch's steps."""
    file = tmp_path / "train.py"
    file.write_text(START.replace("STEP", step).replace("BODY", body))
    own, told = OwnChanges(), tmp_path / "told"

    def now() -> OwnValues:
        return OwnValues([], [])

    names: dict[str, Any] = {"__name__": "__main__"}

    def look() -> None:
        with told.open("a") as file:
            file.write(own.changed(now()) + "\n")

    acts: dict[str, Callable[[], object]] = {
        "body": lambda: own.enter_body(now()),
        "steps": lambda: own.enter_steps(now()),
        "look": look,
    }
    exec(compile(file.read_text(), str(file), "exec"), names | acts)
    return told.read_text().splitlines()


@pytest.mark.parametrize(
    ("step", "name"),
    [
        ("new.update(1.0)", "new.sum"),
        ("old.update(1.0)", "old.sum"),
        ("old.parts.append(1)", "old.parts"),
        ("held['a'][0].update(1.0)", "held['a'][0].sum"),
        ("Meter.count()", "Meter.total"),
        ("count()", "count.n"),
        ("count_globally()", "count_globally.calls"),
        ("append(values, step)", "values"),
        ("append(_values, step)", "_values"),
        ("append(queue, step)", "queue"),
        ("tally.update([step])", "tally"),
        ("next(places)", "places"),
        ("next(parts)", "parts"),
        ("zeros.add_(1)", "zeros"),
        ("zeros.data.add_(1)", "zeros"),
        ("zeros.numpy()[0] += 1", "zeros"),
        ("np.add.at(table, [0], 1)", "table"),
        ("large[-1] += 1", "large"),
        ("next(numbers)", "numbers"),
        ("next(iterator)", "iterator"),
        ("next(cycle)", "cycle"),
        ("next(generator)", "generator"),
        ("close(step)", "close.seen"),
        ("filled(step)", "filled default 1"),
        ("counted()", "counted.n"),
        ("averaged()", "averaged default 1"),
        ("part(step)", "part.args"),
        ("draw()", "draw.__self__"),
        ("args.lr *= 0.9", "args.lr"),
        ("space.n += 1", "space.n"),
        ("slots.n += 1", "slots.n"),
        ("slots.count()", "slots._Slots__m"),
        ("trainer.see(step)", "trainer.lazy"),
        ("trainer.teacher = Meter()", "trainer.teacher"),
        ("held['a'].__setitem__(0, Meter())", "held"),
    ],
)
def test_what_steps_change_is_found(tmp_path: Path, step: str, name: str) -> None:
    assert found(tmp_path, step) == [name, name]


def test_what_only_an_earlier_epoch_changed_is_found(tmp_path: Path) -> None:
    assert found(tmp_path, "if epoch == 0: old.update(1.0)") == ["old.sum", "old.sum"]


@pytest.mark.parametrize(
    ("step", "body"),
    [
        ("pass", "pass"),
        ("loss = step + 1.0", "old.epoch = epoch"),
        ("pass", "new.update(epoch)"),
        ("pass", "trainer.begin(epoch)"),
        ("pass", "trainer.teacher = Meter()"),
    ],
)
def test_what_a_body_makes_anew_is_not(tmp_path: Path, step: str, body: str) -> None:
    assert found(tmp_path, step, body) == ["", ""]


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ("trainer.count()", "trainer.epochs"),
        ("append(values, epoch)", "values"),
        ("zeros.mul_(2).add_(1)", "zeros"),
        ("count()", "count.n"),
    ],
)
def test_what_a_body_makes_from_what_it_was_is_found(tmp_path: Path, body: str, name: str) -> None:
    assert found(tmp_path, "pass", body)[1] == name


class Shifted(Sampler[int]):
    """Another order in each epoch, by a count of its own."""

    def __init__(self) -> None:
        self.epochs = 0

    def __iter__(self) -> Iterator[int]:
        self.epochs += 1
        return iter([(number + self.epochs) % 4 for number in range(4)])


def test_what_a_sampler_counts_is_found_though_only_its_loader_holds_it() -> None:
    loader = DataLoader(TensorDataset(torch.zeros(4)), sampler=Shifted())
    before = OwnValues([], [loader])
    assert OwnValues([], [loader]).name_changed_since(before) == ""
    list(loader)
    assert OwnValues([], [loader]).name_changed_since(before) == "the loader's sampler.epochs"
