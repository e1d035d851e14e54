"""What `samebits.spawn` refuses before anything starts, and what a parcel shares and copies."""

from __future__ import annotations

import linecache
import pickle
import resource
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import samebits
from samebits.launcher.spawn.parcel import Parcel
from samebits.protocol.rank_task import Header
from tests.support.promises import promise

LOCK = threading.Lock()


def two(rank: int, value: object) -> None:
    """Takes the rank and one argument."""


def locked(rank: int) -> None:
    with LOCK:
        pass


def of_a_cell(function: Any) -> Any:
    """As if `function` had been defined in a notebook: sent by value."""
    function.__module__ = "__main__"
    return function


def arrived(*args: Any) -> tuple[Any, ...]:
    with Parcel(two, args) as parcel, Path(parcel.path).open("rb") as file:
        header: Header = pickle.load(file)
        received: tuple[Any, ...] = pickle.loads(header.call)[1]
    return received


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: samebits.spawn("train"), "`fn` must be a function that takes the rank first, but is 'train'."),
        (lambda: samebits.spawn(two, args=[1]), "`args` must be a tuple, but is of type list. Write args=(x,) for one argument."),
        (lambda: samebits.spawn(two, args=(1,), nprocs=0), "`nprocs` must be a whole number of at least 1, but is 0."),
        (lambda: samebits.spawn(two, args=(1,), nprocs=True), "`nprocs` must be a whole number of at least 1, but is True."),
        (lambda: samebits.spawn(two, args=(1,), device="gpu"), '`device` must be "auto", "cpu" or "cuda", but is \'gpu\'.'),
        (lambda: samebits.spawn(two, args=(1,), nprocs=99, device="cuda"), '99 ranks with device="cuda" need one GPU each'),
        (lambda: samebits.spawn(two), "`fn` is called with the rank and then `args`, which do not fit: missing a required"),
        (lambda: samebits.spawn(two, args=(sys._getframe(),)), "Argument 0 (frame) cannot be sent to the ranks: "),
        (lambda: samebits.spawn(of_a_cell(locked)), "`LOCK` (lock), which locked uses, cannot be sent to the ranks: "),
        (
            lambda: samebits.spawn(two, args=(torch.multiprocessing.get_context("fork").Queue(),)),
            "Argument 0 (Queue) cannot be sent to the ranks: ",
        ),
    ],
)  # fmt: skip
def test_what_cannot_work_is_one_sentence_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Any, sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(samebits.UsageError) as refused:
        call()
    assert str(refused.value).startswith(sentence)
    assert list(tmp_path.iterdir()) == []


def test_a_rank_does_not_start_ranks_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMEBITS_RANK", "{}")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(
        samebits.UsageError, match="called in rank 1 of a run, so each rank would start ranks of its own"
    ):
        samebits.spawn(two, args=(1,))


@promise(
    "torchrun-scripts-and-samebits-spawn",
    "Tensors that are arguments of `samebits.spawn` are shared with the caller; models are copied "
    "unless `share_memory()` was called",
)
def test_tensors_that_are_arguments_are_shared_and_models_are_copied() -> None:
    plain, listed = torch.zeros(3), [torch.zeros(2)]
    model, shared = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).share_memory()
    received = arrived(plain, listed, model, shared)
    received[0].fill_(1)
    received[1][0].fill_(2)
    with torch.no_grad():
        for theirs in received[2:]:
            theirs.weight.fill_(3)
    assert plain.tolist() == [1, 1, 1]
    assert listed[0].tolist() == [2, 2]
    assert 3 not in model.weight
    assert (shared.weight == 3).all()
    assert torch.equal(received[2].bias, model.bias)


def test_two_views_of_one_storage_stay_two_views_of_one_storage() -> None:
    whole = torch.arange(6.0)
    first, second = arrived(whole, whole[2:4])
    first[2] = 9
    assert second.tolist() == [9, 3]
    assert second.storage_offset() == 2


def test_queues_and_pipes_of_a_spawn_context_are_the_same_queues_and_pipes() -> None:
    context = torch.multiprocessing.get_context("spawn")
    queue, (reader, writer) = context.SimpleQueue(), context.Pipe(duplex=False)
    theirs, end = arrived(queue, writer)
    theirs.put("through the queue")
    end.send("through the pipe")
    assert (queue.get(), reader.recv()) == ("through the queue", "through the pipe")


def test_a_list_that_holds_itself_and_long_names_of_generated_code_travel() -> None:
    loop: list[Any] = [torch.zeros(1)]
    loop.append(loop)
    linecache.cache["<generated " + "x" * 300 + ">"] = (1, None, ["\n"], "")
    with Parcel(takes, (loop,)):
        assert loop[0].is_shared()


def test_too_many_open_files_are_one_sentence() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    tensors = [torch.zeros(1) for _ in range(200)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 20, before[1]))
    try:
        with pytest.raises(samebits.UsageError, match=r"cannot be moved to shared memory: .*ulimit -n"):
            Parcel(takes, (tensors,))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def takes(rank: int, value: object) -> None:
    """What is sent with a value."""
