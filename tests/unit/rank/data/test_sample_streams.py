"""IterableDatasets, read by ranks and loader workers that never talk to each other."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from samebits.errors import UsageError
from samebits.protocol.layout.placement import place
from samebits.rank.data.loader import LoaderContext
from samebits.rank.data.stream import PreparedStream, SavedStream, StreamPosition
from samebits.rank.init.random_streams import seed_process
from tests.support.promises import promise


class Numbers(IterableDataset):
    """Shuffled and augmented with the global generators."""

    def __init__(self, count=37):
        self.count = count

    def __iter__(self):
        order = list(range(self.count))
        random.shuffle(order)
        for number in order:
            yield float(number), random.random(), np.random.rand(), torch.rand(()).item()


class Split(Numbers):
    """Split by worker, as torch's documentation tells."""

    def __iter__(self):
        worker = get_worker_info()
        of, mine = (1, 0) if worker is None else (worker.num_workers, worker.id)
        yield from (float(number) for number in range(self.count) if number % of == mine)


class Plain(Numbers):
    def __iter__(self):
        yield from map(float, range(self.count))


def prepared(loader, rank=0, ranks=1, lanes=4, seed=0):
    context = LoaderContext(seed, 0, place(lanes, ranks).lanes(rank), lanes, seed_process)
    return PreparedStream(loader, context, lambda _: iter(()))


def read(steps):
    """Every step's size and batches, as far as this rank has them."""
    found = []
    while not steps.is_over:
        step, batches = steps.take()
        found.append((step.cut.samples, [as_lists(next(batches)) for _ in step.parts]))
    return found


def as_lists(batch):
    return [one.tolist() for one in batch] if isinstance(batch, list) else batch.tolist()


def epoch(dataset, *position, epochs=1, **options):
    loader = prepared(DataLoader(dataset, **({"batch_size": 10} | options)), *position)
    return [read(loader.training(loader.begin_epoch(), StreamPosition())) for _ in range(epochs)][-1]


@promise(
    "samples",
    "An `IterableDataset` gives each sample to one rank, with any number of loader workers; streams that "
    "differ are stopped in the step where they do",
    also=[
        "test_samples_depend_on_neither_workers_nor_ranks_nor_earlier_epochs",
        "test_a_stream_that_differs_between_ranks_is_refused_in_the_step_where_it_does",
        "test_workers_that_read_other_samples_are_noticed",
    ],
)
def test_each_sample_of_a_stream_is_on_exactly_one_rank():
    for ranks in (1, 2, 3, 4):
        found = [epoch(Plain(), rank, ranks) for rank in range(ranks)]
        assert sorted(one for steps in found for _, batches in steps for batch in batches for one in batch) == [
            float(number) for number in range(37)
        ]
        assert [[size for size, _ in steps] for steps in found] == [[size for size, _ in found[0]]] * ranks


def test_a_short_last_step_fills_the_first_lanes_and_drop_last_leaves_it_out():
    assert [size for size, _ in epoch(Plain())] == [(3, 3, 2, 2)] * 3 + [(3, 3, 1, 0)]
    assert [size for size, _ in epoch(Plain(), drop_last=True)] == [(3, 3, 2, 2)] * 3
    assert [size for size, _ in epoch(Plain(40))] == [(3, 3, 2, 2)] * 4


@pytest.mark.ranks
@pytest.mark.parametrize("persistent", [False, True])
def test_samples_depend_on_neither_workers_nor_ranks_nor_earlier_epochs(persistent):
    alone = epoch(Numbers(), epochs=2)
    assert alone != epoch(Numbers(), epochs=1)
    assert epoch(Numbers(), epochs=2, num_workers=2, persistent_workers=persistent) == alone
    halves = [epoch(Numbers(), rank, 2, epochs=2, num_workers=2) for rank in range(2)]
    assert [(size, first + second) for (size, first), (_, second) in zip(*halves, strict=True)] == alone


@pytest.mark.ranks
def test_a_data_set_that_splits_itself_by_worker_gives_all_to_each():
    assert epoch(Split(), num_workers=2) == epoch(Plain())

    def split(worker_id):
        info = get_worker_info()
        info.dataset.count = info.dataset.count // info.num_workers + worker_id

    assert epoch(Plain(), num_workers=2, worker_init_fn=split) == epoch(Plain())


@pytest.mark.ranks
def test_workers_that_read_other_samples_are_noticed():
    class Own(Numbers):
        def __iter__(self):
            yield from np.random.default_rng().permutation(self.count).tolist()

    with pytest.raises(UsageError, match="loader workers read different streams"):
        epoch(Own(), num_workers=2)


class OwnNumbers(Numbers):
    def __iter__(self):
        yield from np.random.default_rng().permutation(self.count).tolist()


class Remembers(Numbers):
    """Its generator outlives the copy that an epoch reads."""

    def __init__(self):
        super().__init__()
        self.rng = random.Random(0)

    def __iter__(self):
        yield from (self.rng.random() for _ in range(self.count))


@pytest.mark.ranks
@pytest.mark.parametrize("workers", [0, 1])
def test_a_reader_without_others_notices_that_a_stream_does_not_repeat_itself(workers):
    def repeats(dataset):
        loader = prepared(DataLoader(dataset, batch_size=10, num_workers=workers))
        steps = loader.training(loader.begin_epoch(), StreamPosition())
        read(steps)
        return steps.read_again()

    assert [repeats(one) for one in (Plain(), Numbers(), OwnNumbers())] == [True, True, False]
    assert repeats(Remembers()) == bool(workers), "a new worker has a copy of it"


def test_an_epoch_goes_on_after_any_step_by_reading_what_is_behind():
    loader = prepared(DataLoader(Numbers(), batch_size=10))
    straight = loader.training(0, StreamPosition())
    places, found = [straight.order], []
    while not straight.is_over:
        step, batches = straight.take()
        found.append((step.cut.samples, [as_lists(next(batches)) for _ in step.parts]))
        places.append(straight.order)
    for done, order in enumerate(places):
        again = prepared(DataLoader(Numbers(), batch_size=10)).training(0, StreamPosition(1, done, order))
        assert read(again) == found[done:]
        assert (again.num_samples, again.mine) == (37, [37, 0])
    with pytest.raises(UsageError, match="had other samples, or another order"):
        prepared(DataLoader(Numbers(), batch_size=10), seed=1).training(0, StreamPosition(1, 2, places[2]))


class Resumable(IterableDataset):
    """Knows where it is; counts what it read."""

    read = 0

    def __init__(self, count=37):
        self.count, self.next = count, 0

    def __iter__(self):
        while self.next < self.count:
            self.next += 1
            Resumable.read += 1
            yield self.next - 1.0 + random.random()

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class Forgetful(Resumable):
    """Loses what is in its buffer."""

    def __iter__(self):
        buffer = []
        for sample in super().__iter__():
            buffer.append(sample)
            if len(buffer) > 5:
                yield buffer.pop(random.randrange(5))
        yield from buffer


def stop(dataset, done):
    steps = prepared(DataLoader(dataset, batch_size=10)).training(0, StreamPosition(), with_state=True)
    for _ in range(done):
        steps.take()
    steps.look()
    return StreamPosition(1, done, steps.order), steps.saved


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.ranks)])
def test_a_data_set_that_knows_where_it_is_reads_nothing_again(workers):
    where, saved = stop(Resumable(), 2)
    assert saved == SavedStream({"next": 20}, 20, 10, saved.after)
    Resumable.read = 0
    loader = prepared(DataLoader(Resumable(), batch_size=10, num_workers=workers))
    steps = loader.training(0, where, saved)
    assert "load_state_dict" in steps.goes_on_by
    assert read(steps) == epoch_of(Resumable)[2:]
    if not workers:
        assert Resumable.read == 17 + 37
    assert read(loader.training(1, StreamPosition()))[0][0] == (3, 3, 2, 2), "the next epoch is whole"


def epoch_of(kind):
    return read(prepared(DataLoader(kind(), batch_size=10)).training(0, StreamPosition()))


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.ranks)])
def test_one_that_goes_on_with_other_samples_is_read_again(workers):
    where, saved = stop(Forgetful(), 2)
    steps = prepared(DataLoader(Forgetful(), batch_size=10, num_workers=workers)).training(0, where, saved)
    assert "from its beginning" in steps.goes_on_by
    assert read(steps) == epoch_of(Forgetful)[2:]


def test_one_that_refuses_its_state_is_read_again():
    class Refusing(Resumable):
        def load_state_dict(self, state):
            raise KeyError("old format")

    where, saved = stop(Refusing(), 2)
    steps = prepared(DataLoader(Refusing(), batch_size=10)).training(0, where, saved)
    assert "from its beginning" in steps.goes_on_by
    assert len(read(steps)) == 2


def test_the_number_of_the_epoch_is_told_to_the_data_set():
    class Epochs(Plain):
        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            yield from (number + 100.0 * self.epoch for number in range(self.count))

    assert epoch(Epochs(4), epochs=3)[0][1] == [[200.0, 201.0, 202.0], [203.0]]


def test_an_exception_names_the_sample():
    class Broken(Plain):
        def __iter__(self):
            yield from (1.0, 2.0)
            raise KeyError("no such file")

    with pytest.raises(KeyError) as caught:
        epoch(Broken())
    assert caught.value.__notes__ == ["samebits: while fetching sample 2 of the data set"]


def test_an_evaluation_deals_whole_batches_and_has_each_sample_once():
    def evaluated(ranks):
        shares = [prepared(DataLoader(Plain(), batch_size=5), rank, ranks).evaluation(3) for rank in range(ranks)]
        found = sorted((part.step, batch.tolist()) for share in shares for part, batch in share)
        assert {share.num_samples for share in shares} == {37}
        return found

    assert sum(len(batch) for _, batch in evaluated(1)) == 37
    assert evaluated(1) == evaluated(2) == evaluated(3)
