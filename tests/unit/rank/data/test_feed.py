"""The feed: what an ordinary DataLoader becomes, without any other rank."""

import random
from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from samebits.protocol.layout.placement import place
from samebits.rank.data.device_copies import to_device
from samebits.rank.data.lane_dataset import LaneDataset, LaneIndices
from samebits.rank.data.loader import LoaderContext, PreparedLoader, leftover_of
from samebits.rank.data.uses import dataset_digest
from samebits.rank.init.random_streams import Streams, seed_process
from tests.support.promises import promise

META = torch.device("meta")


def context(rank=0, ranks=1, lanes=4, **options):
    return LoaderContext(options.get("seed", 0), 0, place(lanes, ranks).lanes(rank), lanes, seed_process)


def prepared(loader, *position, **options):
    return PreparedLoader(loader, context(*position, **options), lambda _: iter(()))


def epoch(loader):
    plan = loader.plan_training()
    return plan, [part for step in loader.cut(plan, 1) for part in step.parts]


@promise(
    "samples",
    "Every sample of an epoch is trained on exactly once over all ranks; nothing is padded or dropped "
    "unless the script says `drop_last`; the order is a function of (seed, epoch)",
    also=["test_the_order_is_a_function_of_seed_and_epoch"],
)
def test_every_sample_of_an_epoch_is_on_exactly_one_rank():
    for ranks in (1, 2, 3, 4):
        loaders = [prepared(DataLoader(range(37), batch_size=10, shuffle=True), rank, ranks) for rank in range(ranks)]
        indices = [index for loader in loaders for part in epoch(loader)[1] for index in part.indices]
        assert sorted(indices) == list(range(37))


def test_the_order_is_a_function_of_seed_and_epoch():
    def orders(seed):
        loader = prepared(DataLoader(range(50), batch_size=10, shuffle=True), seed=seed)
        return [epoch(loader)[0].steps for _ in range(3)]

    random.seed(1)
    torch.manual_seed(1)
    first = orders(0)
    torch.manual_seed(2)
    assert orders(0) == first
    assert orders(1) != first
    assert first[0] != first[1] != first[2]


def test_length_and_attributes_are_those_of_the_users_loader():
    loader = DataLoader(range(37), batch_size=10, shuffle=True, drop_last=True, num_workers=2, persistent_workers=True)
    ours = prepared(loader)
    assert (len(ours), ours.batch_size, ours.drop_last, ours.num_workers) == (3, 10, True, 2)
    assert ours.persistent_workers
    assert ours.dataset is loader.dataset
    assert ours.sampler is loader.sampler


def test_a_leftover_distributed_sampler_is_taken_out_and_said_so():
    data = list(range(40))
    for shuffle, kind in ((True, RandomSampler), (False, SequentialSampler)):
        sampler = DistributedSampler(data, num_replicas=2, rank=1, shuffle=shuffle)
        loader = DataLoader(data, batch_size=10, sampler=sampler)
        assert "batch_size=10 is now the global batch" in leftover_of(loader)
        assert isinstance(prepared(loader).sampler, kind)
        prepared(loader).sampler.set_epoch(3)
        assert epoch(prepared(loader))[0].num_samples == 40
    assert leftover_of(DataLoader(data, batch_size=10)) is None


def test_the_batches_of_a_users_batch_sampler_are_the_steps():
    batches = BatchSampler(SequentialSampler(range(10)), 4, drop_last=False)
    assert epoch(prepared(DataLoader(range(10), batch_sampler=batches)))[0].steps == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]
    own = [[0, 9], [1, 8, 2], [3]]
    plan, parts = epoch(prepared(DataLoader(range(10), batch_sampler=own), lanes=2))
    assert (plan.steps, plan.batch_size) == (own, 3)
    assert [list(part.indices) for part in parts] == [[0, 9], [1, 8], [2], [3]]


class Drawing:
    """Samples that show the random streams that they were fetched with."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        return index, random.random(), np.random.rand(), torch.rand(()).item()


def draws(num_workers, ranks):
    drawn = {}
    for rank in range(ranks):
        loader = prepared(DataLoader(Drawing(), batch_size=12, num_workers=num_workers), rank, ranks)
        parts = epoch(loader)[1]
        for batch in loader.fetch(parts, evaluation=False):
            drawn |= {int(index): rest for index, *rest in zip(*(field.tolist() for field in batch), strict=True)}
    return drawn


@promise(
    "samples",
    "Augmentation depends on neither loader workers nor ranks, and a generator or a memory of the data "
    "set's own, with which it does, is named with its line",
    also=["test_a_generator_of_the_data_set_s_own_is_named", "test_what_lanes_change_is_named"],
)
@pytest.mark.ranks
def test_augmentation_depends_on_neither_workers_nor_ranks():
    first = draws(0, 1)
    assert len({tuple(values) for values in first.values()}) == 24
    assert draws(0, 3) == first
    assert draws(2, 1) == first
    assert draws(1, 2) == first


def test_batched_fetching_of_the_data_set_is_used():
    class Together(Drawing):
        def __getitems__(self, indices):
            return [index * 10 for index in indices]

    assert LaneDataset(Together(), seed_process).__getitems__(LaneIndices([1, 2], key=0)) == [10, 20]


def test_attributes_of_the_data_set_are_seen_through():
    class Named(Drawing):
        classes = ("cat", "dog")

    assert LaneDataset(Named(), seed_process).classes == ("cat", "dog")
    with pytest.raises(AttributeError):
        _ = LaneDataset(Named(), seed_process).colours


def test_an_exception_of_the_data_set_names_the_sample():
    class Broken(Drawing):
        def __getitem__(self, index):
            raise KeyError("no such picture")

    with pytest.raises(KeyError) as caught:
        LaneDataset(Broken(), seed_process).__getitems__(LaneIndices([17], key=0))
    assert caught.value.__notes__ == ["samebits: while fetching sample 17 of the data set"]


def test_tensors_move_inside_containers_of_any_kind():
    Pair = namedtuple("Pair", ["image", "name"])  # noqa: PYI024 - what users have

    @dataclass
    class Example:
        image: torch.Tensor
        name: str

    class Moves:
        def to(self, device):
            return ("moved", device)

    tensor = torch.ones(2)
    batch = {"a": [tensor, (tensor, 3)], "b": Pair(tensor, "x"), "c": Example(tensor, "y"), "d": Moves(), "e": None}
    moved = to_device(batch, META)
    assert moved["a"][0].device == moved["a"][1][0].device == moved["b"].image.device == moved["c"].image.device == META
    assert (moved["a"][1][1], moved["b"].name, moved["c"].name, moved["e"]) == (3, "x", "y", None)
    assert (type(moved["b"]), type(moved["c"])) == (Pair, Example)
    assert moved["d"] == ("moved", META)
    assert tensor.device.type == "cpu"
    assert to_device(batch, torch.device("cpu")) is batch


def test_the_hash_of_a_data_set_sees_values_of_every_ordinary_kind():
    def sample(**changes):
        values = {"image": torch.ones(2), "array": np.ones(2), "text": "a", "number": 1.0, "nested": [1, (2,)]}
        return [values | changes] * 3

    digests = [
        dataset_digest(data)
        for data in (
            sample(),
            sample(image=torch.zeros(2)),
            sample(array=np.zeros(2)),
            sample(text="b"),
            sample(number=2.0),
            sample(nested=[1, (3,)]),
            sample(image=torch.ones(1, 2)),
        )
    ]
    assert len(set(digests)) == len(digests)
    assert dataset_digest(sample()) == digests[0]


def test_streams_are_keyed_and_elsewhere_leaves_no_trace():
    from samebits.protocol.layout.stream_key import Domain

    def draw():
        return torch.rand(()).item(), float(np.random.rand()), random.random()

    streams = Streams(7, torch.device("cpu"))
    streams.enter(Domain.LANE, 3, 1)
    first = draw()
    second = draw()
    streams.enter(Domain.LANE, 3, 1)
    assert draw() == first
    with streams.elsewhere():
        seed_process(99)
        draw()
    assert draw() == second
    streams.enter(Domain.LANE, 3, 2)
    assert draw() != first
