"""A loader worker that is killed or stuck names the sample that it was fetching, or says that it cannot."""

import os
import signal
import time

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from lockstep.feed.loader import PreparedLoader, Standing
from lockstep.feed.under_way import MAX_INDEX, UnderWay
from lockstep.rank.streams import seed_process


class Deadly(Dataset):
    """Sample 7 kills its worker, or keeps it."""

    def __init__(self, how):
        self.how = how

    def __len__(self):
        return 16

    def __getitem__(self, index):
        if index == 7:
            os.kill(os.getpid(), self.how) if self.how != signal.SIGCONT else signal.pause()
        return torch.zeros(1)


class Together(Deadly):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


def failure(dataset, **options):
    prepared = PreparedLoader(
        DataLoader(dataset, batch_size=8, num_workers=2, **options),
        Standing(0, 0, range(2), 2, seed_process),
        lambda _: iter(()),
    )
    batches = prepared.fetch(
        [part for step in prepared.cut(prepared.plan_training(), 1) for part in step.parts], evaluation=False
    )
    with pytest.raises(RuntimeError, match="DataLoader") as caught:
        list(batches)
    return caught.value


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # torch's own __del__ meets the killed worker
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGCONT], ids=["killed", "stuck"])
def test_it_names_the_sample(how):
    error = failure(Deadly(how), timeout=0 if how == signal.SIGKILL else 1)
    assert error.__notes__ == ["lockstep: while fetching sample 7 of the data set"]


def test_a_data_set_that_fetches_several_at_once_names_where_they_begin():
    assert "sample 4 or a later one of the lane" in failure(Together(signal.SIGKILL)).__notes__[0]


@pytest.mark.thorough
def test_a_spawned_worker_says_that_it_cannot():
    error = failure(Deadly(signal.SIGKILL), multiprocessing_context="spawn")
    assert error.__notes__ == ["lockstep: while fetching an unknown sample of the data set"]


def test_a_note_costs_little_and_any_index_fits():
    board = UnderWay(2)
    board.be_worker(1)
    board.begin("é" * 99)
    assert len(board.told([0, 1]).encode()) < MAX_INDEX + 60
    board.end()
    assert board.told([0, 1]) == "lockstep: while fetching an unknown sample of the data set"
    began = time.perf_counter()
    for index in range(10_000):
        board.begin(index)
    assert (time.perf_counter() - began) / 10_000 < 50e-6  # about 1 us alone
