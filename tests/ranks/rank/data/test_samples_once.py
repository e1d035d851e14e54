"""Each sample once: streams and samplers, stopped inside an epoch and gone on with on other ranks and loader workers."""

import logging
import os
import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

import samebits
from samebits.launcher.states.description import describe
from samebits.testing.digests import digest_of
from samebits.testing.ranks import RankFailed, Started, run_ranks
from tests.support.notices import Heard
from tests.support.promises import promise

pytestmark = pytest.mark.ranks
SAMPLES, BATCH = 50, 12


def sample(number):
    return torch.tensor([float(number), number % 7.0, 1.0]) + torch.rand(3), number % 3


class Shuffled(IterableDataset):
    def __iter__(self):
        numbers = list(range(SAMPLES))
        random.shuffle(numbers)
        yield from map(sample, numbers)


class Knowing(IterableDataset):
    """It can say where it is."""

    next = 0

    def __iter__(self):
        while self.next < SAMPLES:
            self.next += 1
            yield sample(self.next - 1)

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class Samples(Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, number):
        return sample(number)


LOADERS = {
    "stream": lambda how: DataLoader(Shuffled(), batch_size=BATCH, **how),
    "stream that knows": lambda how: DataLoader(Knowing(), batch_size=BATCH, drop_last=True, **how),
    "batch sampler": lambda how: DataLoader(
        Samples(), batch_sampler=BatchSampler(RandomSampler(range(SAMPLES)), 11, drop_last=False), **how
    ),
    "weighted": lambda how: DataLoader(
        Samples(), batch_size=BATCH, sampler=WeightedRandomSampler(torch.arange(1.0, SAMPLES + 1), 45), **how
    ),
    "subset": lambda how: DataLoader(
        Samples(), batch_size=BATCH, sampler=SubsetRandomSampler(range(SAMPLES - 3)), **how
    ),
}
ONCE = {
    "stream": (50, True),
    "stream that knows": (48, True),
    "batch sampler": (50, True),
    "weighted": (45, False),
    "subset": (47, True),
}


def train(place, kind, workers, stop_after):
    folder = Path(place, kind)
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    run = samebits.init(seed=3, lanes=4, threads=1, name="exp1", save_every="7steps")
    model = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    how = {"num_workers": workers, "persistent_workers": workers > 0}
    model, optimizer, loader = run.prepare(model, optimizer, LOADERS[kind](how))
    losses = {}
    for _ in run.epochs(2):
        for step in run.steps(loader):
            if step.number == stop_after:
                return "stopped"
            for inputs, labels in step:
                run.backward(F.cross_entropy(model(inputs), labels))
            optimizer.step()
            optimizer.zero_grad()
            losses[step.number] = step.loss.hex()
    run.save_state("end")
    return digest_of(model, optimizer), losses


def train_all(place, kinds, workers=0, stop_after=None):
    return {kind: train(place, kind, workers, stop_after) for kind in kinds}


@promise(
    "samples",
    "Streams and samplers that are stopped inside an epoch go on on other ranks and workers with each "
    "sample once, by the data set's `load_state_dict` or by reading, and fetch none that was used",
    also=[
        "test_a_data_set_that_knows_where_it_is_reads_nothing_again",
        "test_one_that_goes_on_with_other_samples_is_read_again",
        "test_going_on_in_an_epoch_of_a_million_samples_fetches_only_what_it_trains_on",
    ],
)
@pytest.mark.parametrize(
    "kinds",
    [
        ("stream",),
        pytest.param(("stream that knows", "weighted", "subset", "batch sampler"), marks=pytest.mark.thorough),
    ],
)
def test_what_is_stopped_inside_an_epoch_goes_on_with_each_sample_once(tmp_path, kinds):
    [straight] = run_ranks(train_all, Started(1), str(tmp_path / "straight"), kinds)
    stopped, last = str(tmp_path / "stopped"), 8
    assert run_ranks(train_all, Started(2), stopped, kinds, 2, last)[0] == dict.fromkeys(kinds, "stopped")
    for kind in kinds:
        inside = describe(tmp_path / "stopped" / kind / "samebits-runs" / "exp1" / "states" / "step-00000007")["inside"]
        assert inside["goes_on_by"] == {"stream": "reading", "stream that knows": "state_dict"}.get(kind, "order")
    for result in run_ranks(train_all, Started(4), stopped, kinds):
        for kind, (bits, losses) in result.items():
            assert bits == straight[kind][0], kind
            assert losses.items() <= straight[kind][1].items()
            assert min(losses) == last, "no step is made twice"
    for kind in kinds:
        for folder in ("straight", "stopped"):
            epochs = describe(tmp_path / folder / kind / "end")["epochs"]
            assert [(one["samples"], one["each_once"]) for one in epochs] == [ONCE[kind]] * 2, kind


class Unseeded(IterableDataset):
    def __iter__(self):
        yield from map(sample, random.Random().sample(range(SAMPLES), SAMPLES))


def stream_alone(dataset):
    logging.getLogger("samebits").addHandler(heard := Heard())
    run = samebits.init(lanes=2, threads=1)
    model, loader = run.prepare(torch.nn.Linear(3, 3), DataLoader(dataset, batch_size=BATCH))
    for _epoch in run.epochs(2):
        for step in run.steps(loader):
            for x, _ in step:
                run.backward(model(x).sum())
            model.zero_grad()
    return ["read a second time" in notice for notice in heard.notices].count(True)


@pytest.mark.thorough
def test_a_stream_that_does_not_repeat_itself_is_named_on_one_rank_too():
    assert [run_ranks(stream_alone, Started(1), dataset) for dataset in (Shuffled(), Unseeded())] == [[0], [1]]


class OfRank(IterableDataset):
    """Another stream on each rank: from sample `beginning` on, and of another length."""

    def __init__(self, rank, beginning, count):
        self.rank, self.beginning, self.count = rank, beginning, count

    def __iter__(self):
        for number in range(self.count):
            yield sample(number + (self.rank if number >= self.beginning else 0))


def train_of_rank(beginning, shorter):
    run = samebits.init(seed=3, lanes=4, threads=1)
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    stream = OfRank(run.rank, beginning, SAMPLES - 10 - shorter * run.rank)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(stream, batch_size=10))
    for step in run.steps(loader):
        for inputs, labels in step:
            run.backward(F.cross_entropy(model(inputs), labels))
        optimizer.step()


@pytest.mark.parametrize(
    ("beginning", "shorter", "told"),
    [
        (25, 0, "in step 3 of the epoch, rank 0 has read 10 samples and rank 1 others"),
        (SAMPLES, 10, "in step 4 of the epoch, rank 0 has read 10 samples and rank 1 0"),
    ],
)
def test_a_stream_that_differs_between_ranks_is_refused_in_the_step_where_it_does(beginning, shorter, told):
    with pytest.raises(RankFailed, match=told) as caught:
        run_ranks(train_of_rank, Started(2), beginning, shorter)
    assert caught.value.error_type == "UsageError"


MILLION = 1_000_000


class Counted(Dataset):
    fetched: list = []  # noqa: RUF012 - of the process

    def __len__(self):
        return MILLION

    def __getitem__(self, number):
        self.fetched.append(number)
        return torch.tensor([float(number), 1.0, 1.0]), number % 3


def train_on_a_million(place, stop_after, saved_at):
    os.chdir(place)
    run = samebits.init(seed=3, lanes=4, threads=1, name="exp1", save_every=f"{saved_at}steps")
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    model, optimizer, loader = run.prepare(model, optimizer, DataLoader(Counted(), batch_size=32, shuffle=True))
    Counted.fetched.clear()
    for _ in run.epochs(1):
        for step in run.steps(loader):
            if step.number > stop_after:
                return step.index, Counted.fetched
            for inputs, labels in step:
                run.backward(F.cross_entropy(model(inputs), labels))
            optimizer.step()
    return None


def test_going_on_in_an_epoch_of_a_million_samples_fetches_only_what_it_trains_on(tmp_path):
    [(_, first)] = run_ranks(train_on_a_million, Started(1), str(tmp_path), 6, 4)
    [(index, fetched)] = run_ranks(train_on_a_million, Started(1), str(tmp_path), 6, 4)
    assert index == 6
    assert fetched == first[4 * 32 :]
    assert len(fetched) == 2 * 32
