"""Ranks with fewer CPUs than threads, pinned by themselves as taskset, control groups and MPI pin them: right results, no hang."""

from __future__ import annotations

import hashlib
import os
import resource
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import samebits.torch_backend  # noqa: F401 - which names it
from samebits.rank.transport.local import native
from samebits.testing.ranks import Started, run_ranks

pytestmark = [pytest.mark.ranks, pytest.mark.skipif(not native.available(), reason="needs the compiled part")]

FIRST = min(os.sched_getaffinity(0))
EVERYWHERE = frozenset(os.sched_getaffinity(0))


def joined(folder: str, cpus: frozenset[int]) -> tuple[int, int]:
    """Pin this process, join the others; its rank and their number."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.sched_setaffinity(0, cpus)
    dist.init_process_group(
        "samebits", init_method=f"file://{folder}/{min(cpus)}-{len(cpus)}", rank=rank, world_size=size
    )
    return rank, size


def exchanged(folder: str, cpus: frozenset[int]) -> str:
    """A hash of what many kinds of exchange leave on this rank."""
    rank, size = joined(folder, cpus)
    torch.manual_seed(rank)
    found = hashlib.sha256()
    for count in (1, 1000, 70_001, 400_003):
        tensor = torch.randn(count)
        dist.all_reduce(tensor)
        gathered = [torch.empty(count) for _ in range(size)]
        dist.all_gather(gathered, tensor * (rank + 1))
        work = dist.isend(tensor, (rank + 1) % size, tag=count)
        dist.recv(received := torch.empty(count), (rank - 1) % size, tag=count)
        work.wait()
        dist.broadcast(tensor, size - 1)
        for each in (tensor, *gathered, received):
            found.update(each.numpy().tobytes())
    for _ in range(50):
        dist.barrier()
    dist.destroy_process_group()
    return found.hexdigest()


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.thorough)])
@pytest.mark.thorough
def test_ranks_on_one_cpu_exchange_the_same_bits_as_on_all_of_them(tmp_path: Path, ranks: int) -> None:
    on_one, on_all = (run_ranks(exchanged, Started(ranks), str(tmp_path), cpus) for cpus in ({FIRST}, EVERYWHERE))
    assert on_one == on_all


def sleeps(folder: str) -> list[int]:
    """How often this rank went to sleep in each of some rounds of barriers, in a group of four."""
    joined(folder, frozenset({FIRST}))
    found = []
    for _ in range(40):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        for _ in range(50):
            dist.barrier()
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before)
    dist.destroy_process_group()
    return found


def test_four_ranks_on_one_cpu_offer_it_to_each_other_instead_of_sleeping(tmp_path: Path) -> None:
    together = [sum(of_round) for of_round in zip(*run_ranks(sleeps, Started(4), str(tmp_path)), strict=True)]
    assert min(together) < 50, f"sleeps of four ranks in 50 barriers, in each round: {together}"
