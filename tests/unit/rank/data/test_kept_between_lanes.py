"""What data sets, transforms and collate functions keep from one lane to the next is named, with its line; nothing else is."""

import functools
import random
import sys
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, default_collate

from samebits.rank.data import kept_between_lanes
from samebits.rank.data.kept_between_lanes import OwnState

OF_MODULE = np.random.default_rng(2)
SETTINGS = {"level": 0.5}


@pytest.fixture(autouse=True)
def of_this_file(monkeypatch):
    """The classes and functions of this file are the user's."""
    monkeypatch.setattr(kept_between_lanes, "is_the_users", lambda file: file == __file__)
    monkeypatch.setattr(kept_between_lanes, "is_a_class_of_the_users", lambda kind: kind.__module__ == __name__)


class Noise:
    def __init__(self):
        self.rng = random.Random(5)

    def __call__(self, value):
        return value + self.rng.random()


def jitter(rng):
    return lambda value: value + rng.standard_normal()


def of_module(value):
    return value + OF_MODULE.normal()


class Images(Dataset):
    """Each idiom of a data set, by its name."""

    shared = random.Random(1)
    count = 0

    def __init__(self, how):
        self.how, self.calls, self.last, self.cache, self.made, self.file = how, 0, None, {}, None, None
        self.transform = {
            "a transform": Noise,
            "a list of them": lambda: [len, Noise()],
            "a closure": lambda: jitter(np.random.RandomState(3)),
        }.get(how, lambda: None)()
        self.bound = functools.partial(jitter(np.random.default_rng(3))) if how == "a partial" else None
        self.g, self.order = torch.Generator().manual_seed(4), torch.Generator().manual_seed(5)
        self.unused, self.globally, self.layer = random.Random(2), np.random.mtrand._rand, nn.Linear(1, 1)

    def __len__(self):
        return 100

    def __getitem__(self, index):
        value = float(index)
        match self.how:
            case "a transform" | "a closure":
                value = self.transform(value)
            case "a list of them":
                value = self.transform[1](value)
            case "a partial":
                value = self.bound(value)
            case "torch's":
                value += float(torch.rand((), generator=self.g))
            case "a module's":
                value = of_module(value)
            case "a class's":
                value += self.shared.random()
            case "made late":
                self.made = self.made or np.random.default_rng(1)
                value += self.made.normal()
            case "a count":
                self.calls += 1
            case "a class's count":
                Images.count += 1
            case "the last":
                self.last = value
            case "a cache":
                self.cache[index] = value
            case "made by index":
                value += random.Random(index).random()
            case "global streams":
                value += random.random() + float(torch.rand(())) + self.globally.rand()
            case "opened late":
                self.file = self.file or {"path": "a"}
        return value * SETTINGS["level"]


class Seeded(Images):
    def __getitem__(self, index):
        return torch.rand((), generator=self.g.manual_seed(7 + index))


def names(dataset, collate_fn=default_collate, lanes=4):
    found = OwnState(dataset, collate_fn)
    for lane in range(lanes):
        found.enter_lane()
        collate_fn([dataset[index] for index in range(4 * lane, 4 * lane + 4)])
        found.leave_lane()
    assert all(one.where.startswith("test_kept_between_lanes.py:") for one in found.found.values())
    return {one.name for one in found.found.values()}


@pytest.mark.parametrize(
    ("how", "name"),
    [
        ("a transform", "Images.transform.rng"), ("a list of them", "Images.transform[1].rng"),
        ("a closure", "the generator in Images.transform"), ("a partial", "the generator in Images.bound"),
        ("torch's", "Images.g"), ("a module's", "OF_MODULE"), ("a class's", "Images.shared"), ("made late", "Images.made"),
        ("a count", "Images.calls"), ("a class's count", "Images.count"), ("the last", "Images.last"), ("a cache", "Images.cache"),
    ],
)  # fmt: skip
def test_what_lanes_change_is_named(how, name):
    assert names(Images(how)) == {name}


@pytest.mark.parametrize("how", ["nothing", "made by index", "global streams", "opened late"])
def test_what_depends_on_the_index_alone_is_not(how):
    assert names(Images(how)) == set()


def test_a_generator_that_is_seeded_for_each_sample_is_not():
    assert names(Seeded("nothing")) == names(Subset(Seeded("nothing"), range(100))) == set()


def test_a_lone_lane_shows_a_generator():
    assert names(Images("made late"), lanes=1) == {"Images.made"}


def test_a_collate_function_counts_and_a_data_set_behind_another():
    drawn, kept = np.random.default_rng(7), []

    def collate(samples):
        kept.append(len(samples))
        return sum(samples) + drawn.normal()

    assert names(Subset(Images("the last"), range(100)), collate) == {"Subset.dataset.last", "the generator in collate"}


def test_the_library_s_own_memory_is_not_named_but_its_generator_is(monkeypatch):
    monkeypatch.setattr(kept_between_lanes, "is_a_class_of_the_users", lambda kind: False)
    monkeypatch.setattr(kept_between_lanes, "is_the_users", lambda file: False)
    found = OwnState(dataset := Images("a transform"), default_collate)
    for index in range(3):
        found.enter_lane()
        dataset.calls += int(dataset[index] < 99)
        found.leave_lane()
    assert [(one.name, one.where) for one in found.found.values()] == [("Images.transform.rng", "")]


def test_a_look_that_runs_out_of_time_names_nothing_for_it(monkeypatch):
    clock = iter(range(1, sys.maxsize))
    monkeypatch.setattr(time, "thread_time", lambda: float(next(clock)))
    assert names(Images("made late")) == set()


def test_what_cannot_be_read_raises_nothing():
    class Odd(Dataset):
        def __getattr__(self, name):
            raise RuntimeError(name)

        def __getitem__(self, index):
            return index

    assert names(Odd()) == set()
