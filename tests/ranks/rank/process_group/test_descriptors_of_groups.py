"""How many descriptors a rank holds for its groups: with 64 ranks and fifty groups there would be thousands of one kind."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import samebits.torch_backend  # noqa: F401 - which names it
from samebits.testing.ranks import Started, run_ranks
from tests.support.promises import promise

pytestmark = pytest.mark.ranks

NUM_GROUPS = 8


def processes_watched():
    """The descriptors of this process that mean other processes (pidfd)."""
    count = 0
    for about in Path("/proc/self/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the folder's own
            count += "\nPid:" in about.read_text()
    return count


def held(folder):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("samebits", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    before = processes_watched(), len(list(Path("/proc/self/fd").iterdir()))
    groups = [dist.new_group() for _ in range(NUM_GROUPS)]
    for group in groups:
        dist.all_reduce(total := torch.ones(1), group=group)
        assert total.item() == size
    return before, (processes_watched(), len(list(Path("/proc/self/fd").iterdir())))


@promise(
    "the-backend-samebits-of-torch-distributed",
    "A rank has one descriptor for each other rank, and nothing is left in shared memory",
    also=["test_ranks_meet_under_other_launchers_and_leave_nothing_in_shared_memory"],
)
def test_a_rank_has_one_descriptor_for_each_other_rank_whatever_the_number_of_groups(tmp_path):
    for (watched, everything), (later, much) in run_ranks(held, Started(3), str(tmp_path)):
        assert (watched, later) == (2, 2)
        assert much - everything <= NUM_GROUPS, "each group has its control block, and nothing else"
