"""A loader worker that dies fails its rank where a batch is waited for, and nowhere else, with the sample."""

import ctypes
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from samebits.protocol.journal.failure import FailureKind, describe, kind_of
from samebits.rank.data.loader import LoaderContext, PreparedLoader
from samebits.rank.data.worker_batches import ChildEnded, Interruptible
from samebits.rank.data.worker_progress import user_line
from samebits.rank.init.random_streams import seed_process


def test_a_wait_is_interrupted_only_while_it_lasts():
    lost = []
    with Interruptible(lambda: bool(lost)):
        os.kill(os.getpid(), signal.SIGCHLD)
    lost.append(1)
    os.kill(os.getpid(), signal.SIGCHLD)
    with pytest.raises(ChildEnded), Interruptible(lambda: bool(lost)):
        pytest.fail("it came before")
    lost.clear()
    with pytest.raises(ChildEnded), Interruptible(lambda: bool(lost)):
        lost.append(1)
        os.kill(os.getpid(), signal.SIGCHLD)
        time.sleep(1)
        pytest.fail("nothing interrupted the wait")
    os.kill(os.getpid(), signal.SIGCHLD)


def test_the_users_line_of_a_stack():
    stack = (
        "Current thread 0x00007f (most recent call first):\n"
        f'  File "{os.__file__}", line 5 in wait\n'
        '  File "/home/me/train.py", line 12 in load\n'
        '  File "/home/me/train.py", line 20 in __getitem__\n'
        '  File "/x/samebits/feed/lane_dataset.py", line 80 in _one\n'
        '  File "/home/me/train.py", line 99 in <module>\n'
    )
    assert user_line(stack) == "/home/me/train.py:12 in load"
    assert user_line("") == ""


class Fatal(Dataset):
    """Sample 5 ends its worker."""

    def __init__(self, how):
        self.how = how

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index == 5:
            HOW[self.how]()
        return torch.rand(3), bytes([index]) * 50_000


HOW = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: ctypes.string_at(0),
    "_exit": lambda: os._exit(0),
}


def fetch(dataset, **options):
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=2, **options)
    loader = PreparedLoader(loader, LoaderContext(3, 0, range(2), 2, seed_process), lambda _: iter(()))
    steps = loader.cut(loader.plan_training(), 1)
    parts = [part for step in steps for part in step.parts]
    batches = loader.fetch(parts, evaluation=False)
    return [next(batches) for _ in parts]


@pytest.mark.parametrize("persistent", [False, pytest.param(True, marks=pytest.mark.thorough)])
@pytest.mark.parametrize(
    ("how", "context"),
    [
        ("SIGKILL", "fork"),
        pytest.param("SIGSEGV", "fork", marks=pytest.mark.thorough),
        pytest.param("_exit", "fork", marks=pytest.mark.thorough),
        pytest.param("SIGKILL", "spawn", marks=pytest.mark.thorough),
        pytest.param("SIGSEGV", "forkserver", marks=pytest.mark.thorough),
    ],
)
def test_a_worker_that_dies_fails_its_rank_with_the_sample(how, context, persistent):
    with pytest.raises(RuntimeError, match="DataLoader worker") as raised:
        fetch(Fatal(how), multiprocessing_context=context, persistent_workers=persistent)
    failure = describe(0, raised.value, Path("train.py"), ())
    assert kind_of(raised.value) is FailureKind.WORKER
    assert (failure.sample, failure.sample_place) == ("5", failure.sample_place)
    assert failure.sample_place.startswith("epoch 1, step ")


@pytest.mark.thorough
def test_a_worker_that_cannot_start_fails_its_rank():
    def breaks(_):
        os._exit(4)

    with pytest.raises(RuntimeError, match="exit") as raised:
        fetch(Fatal("SIGKILL"), worker_init_fn=breaks)
    assert kind_of(raised.value) is FailureKind.WORKER
