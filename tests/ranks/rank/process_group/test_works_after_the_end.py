"""Works of the backend "samebits" that are waited for after `destroy_process_group`: a value, or one clear error."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from samebits.rank.process_group import exchange
from samebits.testing.ranks import Started, run_ranks
from samebits.torch_backend import CollectiveMisused, CollectivePeerLost
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

LARGE = 1 << 21
"""Elements that go through shared memory in many pieces, so that every rank has to move them on."""


def begin(folder):
    """This rank's default group; a new one each time."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("samebits", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    return rank


def values(folder):
    for count in (1, LARGE):
        for read in (
            lambda work: work.wait(),
            lambda work: work.is_completed() and work.is_success(),
            lambda work: work.get_future().wait() is not None,
        ):
            rank = begin(folder)
            sums, part = torch.full((count,), rank + 1.0), torch.full((count,), rank + 1.0)
            pair = dist.new_group()
            works = [dist.all_reduce(sums, async_op=True), dist.all_reduce(part, group=pair, async_op=True)]
            message = torch.full((count,), float(rank))
            works.append(dist.isend(message, 1) if rank == 0 else dist.irecv(message, 0))
            dist.barrier()
            dist.destroy_process_group()
            for work in works:
                assert read(work)
                assert work.wait()
            for tensor, value in ((sums, 3.0), (part, 3.0), (message, 0.0)):
                assert torch.equal(tensor, torch.full((count,), value))


@promise(
    "the-backend-samebits-of-torch-distributed",
    "A work that is waited for after `destroy_process_group` has its value, or one error says so",
    also=["test_a_work_that_cannot_be_finished_raises_one_clear_error_and_holds_nobody_up"],
)
def test_a_work_that_is_waited_for_after_the_end_of_its_group_has_its_value(tmp_path):
    run_ranks(values, Started(2), str(tmp_path))


def errors(folder):
    exchange.LAST_PATIENCE_S = 3600.0  # to wait for what cannot come would be a hang
    for way in ("left", "receive", "raised"):
        rank = begin(folder)
        dist.barrier()
        if rank == 1:
            if way == "left":
                dist.destroy_process_group()
            (Path(folder) / way).touch()
            while not (Path(folder) / f"{way}-told").exists():
                time.sleep(0.01)
            if way != "left":
                dist.destroy_process_group()
            continue
        while not (Path(folder) / way).exists():
            time.sleep(0.01)
        tensor = torch.ones(LARGE)
        work = dist.irecv(tensor, 1) if way == "receive" else dist.all_reduce(tensor, async_op=True)
        with contextlib.suppress(ValueError):
            try:
                if way == "raised":
                    raise ValueError
            finally:
                dist.destroy_process_group()
        for _ in range(2):
            with pytest.raises(dist.DistBackendError) as caught:
                work.wait()
            if way == "left":
                assert isinstance(caught.value, CollectivePeerLost)
                assert "Rank 1 left the group" in str(caught.value)
            else:
                assert isinstance(caught.value, CollectiveMisused)
                assert str(caught.value) == (
                    "The default group was destroyed on this rank before this operation was finished, so it has no "
                    "result. Call wait() of its work before dist.destroy_process_group."
                )
        (Path(folder) / f"{way}-told").touch()


def test_a_work_that_cannot_be_finished_raises_one_clear_error_and_holds_nobody_up(tmp_path):
    run_ranks(errors, Started(2), str(tmp_path))
