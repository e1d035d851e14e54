"""A loader worker that is stuck, and a sample that fails, are named: the sample, its place, and the user's line."""

import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from samebits.rank.data import worker_batches
from samebits.rank.data.loader import LoaderContext, PreparedLoader
from samebits.rank.data.worker_progress import MAX_INDEX, WorkerProgress
from samebits.rank.init.random_streams import seed_process
from tests.support.launching import until
from tests.support.promises import promise


class Deadly(Dataset):
    """Sample 7 keeps whoever fetches it, or fails."""

    def __init__(self, *, fails=False):
        self.fails = fails

    def __len__(self):
        return 16

    def __getitem__(self, index):
        if index == 7:
            if self.fails:
                raise LookupError("no picture")
            time.sleep(100)
        return torch.zeros(1 + (index == 9))


class Together(Deadly):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


def batches(dataset, num_workers=2, **options):
    prepared = PreparedLoader(
        DataLoader(dataset, batch_size=8, num_workers=num_workers, **options),
        LoaderContext(0, 0, range(2), 2, seed_process),
        lambda _: iter(()),
    )
    steps = prepared.cut(prepared.plan_training(), 1)
    return prepared.fetch([part for step in steps for part in step.parts], evaluation=False)


@promise(
    "never-stuck-nothing-left-behind",
    "A sample that cannot be fetched, and a worker stuck beyond `timeout=`, are named with epoch, step and line",
    also=["test_a_sample_that_fails_is_named_with_its_place"],
)
@pytest.mark.thorough
@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.thorough)])
def test_a_worker_beyond_the_timeout_names_its_sample_and_line(context):
    stuck = batches(Deadly(), timeout=1 if context == "fork" else 30, multiprocessing_context=context)
    with pytest.raises(RuntimeError, match="DataLoader timed out after") as caught:
        list(stuck)
    stuck._fetched._fetched._batches.abandon()  # torch would wait five seconds for it
    sample, line = caught.value.__notes__
    assert sample == "samebits: while fetching sample 7 of the data set (epoch 1, step 1)"
    assert line.startswith(f"samebits: at {__file__}:29 in __getitem__ (worker pid ")


def test_a_wait_without_a_timeout_says_once_where_it_stands(monkeypatch, capsys):
    monkeypatch.setattr(worker_batches, "STUCK_S", 0.3)
    stuck = iter(worker_batches_of(Deadly()))
    until(lambda: stuck._under_way.busy([1]) == 1 and not stuck._try_get_data(0.1)[0], "sample 7")
    for _ in range(5):
        stuck._try_get_data(0.1)
    stuck.abandon()
    said = capsys.readouterr().err
    assert said.count("no batch has come for 0 s, while fetching sample 7 of the data set (epoch 1, step 1)\n") == 1


def worker_batches_of(dataset):
    return batches(dataset)._fetched._fetched._batches


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("dataset", "error", "note", "line"),
    [
        (Deadly(fails=True), LookupError, "while fetching sample 7 of the data set (epoch 1, step 1)", "no picture"),
        (
            Together(fails=True),
            LookupError,
            "while fetching samples 4, 5, 6, 7 of the data set at once (epoch 1, step 1)",
            "[self[index] for index in indices]",
        ),
        ("collate", RuntimeError, "while collating samples 8, 9, 10, 11 of the data set (epoch 1, step 2)", "stack"),
    ],
)
def test_a_sample_that_fails_is_named_with_its_place(num_workers, dataset, error, note, line):
    if dataset == "collate":
        dataset = Deadly()
        dataset.__class__ = type("Uneven", (Deadly,), {"__getitem__": lambda _, index: torch.zeros(1 + (index == 9))})
    fetched = batches(dataset, num_workers)
    with pytest.raises(error) as caught:
        list(fetched)
    if (
        num_workers
    ):  # torch would wait ten seconds for them where the exception's frames are collected with their queues
        fetched._fetched._fetched._batches.abandon()
    notes = getattr(caught.value, "__notes__", [])
    text = "\n".join([str(caught.value), *notes])
    assert f"samebits: {note}" in text
    if num_workers:
        assert line in text, "the worker's own traceback"


def test_a_note_costs_little_and_any_index_fits():
    board = WorkerProgress(2)
    board.be_worker(1)
    board.enter("é" * 99)
    board.begin("é" * 99)
    assert len(board.doing(1).index.encode()) < MAX_INDEX + 4
    assert board.busy([0, 1]) == 1
    board.end()
    assert board.busy([0, 1]) is None
    assert board.doing(1).words == "between two lanes"
    began = time.perf_counter()
    for index in range(10_000):
        board.begin(index)
    assert (time.perf_counter() - began) / 10_000 < 50e-6  # about 1 us alone
