"""Data sets and loaders of other libraries, where they are installed."""

import pytest
from torch.utils.data import DataLoader

from samebits.rank.data.loader import LoaderContext, PreparedLoader, leftover_of
from samebits.rank.data.stream import PreparedStream, StreamPosition
from samebits.rank.init.random_streams import seed_process


def numbers(shards):
    for shard in shards:
        for number in range(15):
            yield {"x": float(shard * 100 + number)}


def read(steps):
    found = []
    while not steps.is_over:
        found.append([next(batches)["x"].tolist() for step, batches in [steps.take()] for _ in step.parts])
    return found


@pytest.mark.thorough
@pytest.mark.ranks
@pytest.mark.parametrize(("buffer", "how"), [(0, "its own load_state_dict"), (20, "reading the epoch again")])
def test_a_streamed_data_set_of_hugging_face_goes_on_with_the_same_samples(buffer, how):
    datasets = pytest.importorskip("datasets")

    def begin(workers, *place, **options):
        stream = datasets.IterableDataset.from_generator(numbers, gen_kwargs={"shards": list(range(4))})
        stream = stream.shuffle(seed=5, buffer_size=buffer) if buffer else stream
        loader = DataLoader(stream, batch_size=13, num_workers=workers)
        return PreparedStream(loader, STANDING, lambda _: iter(())).training(1, *place, **options)

    straight = read(begin(0, StreamPosition()))
    assert read(begin(2, StreamPosition())) == straight
    stopped = begin(0, StreamPosition(), with_state=True)
    for _ in range(2):
        stopped.take()
    stopped.look()
    for workers in (0, 2):
        steps = begin(workers, StreamPosition(1, 2, stopped.order), stopped.saved)
        assert how in steps.goes_on_by
        assert read(steps) == straight[2:]


def test_the_order_of_a_stateful_data_loader_is_a_function_of_the_seed_and_the_epoch():
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    loader = stateful.StatefulDataLoader(range(40), batch_size=10, shuffle=True)
    plain = DataLoader(range(40), batch_size=10, shuffle=True)
    ours, others = (PreparedLoader(one, STANDING, lambda _: iter(())) for one in (loader, plain))
    assert ours.plan_training().steps == others.plan_training().steps
    assert ours.sampler.generator is None
    assert "state_dict is not needed" in leftover_of(loader)


STANDING = LoaderContext(0, 0, range(4), 4, seed_process)
