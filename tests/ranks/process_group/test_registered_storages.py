"""Tensors that are exchanged again and again: the others use them where they are, and nothing else may be different."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import lockstep.torch_backend  # noqa: F401 - which names it
from lockstep.node.native import compiled
from lockstep.process_group import registered
from lockstep.process_group.registered import LEAST_BYTES, SWEEP_EVERY, USES, registrations
from lockstep.testing.ranks import Started, run_ranks

pytestmark = pytest.mark.ranks

SIZES = (LEAST_BYTES // 4, LEAST_BYTES // 4 + 5, 300_001)
"""Elements: whole pages, and what ends anywhere in one."""


def begin(folder, timeout=60.0):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    meeting = f"file://{folder}/meeting"
    patience = dt.timedelta(seconds=timeout)
    dist.init_process_group("lockstep", init_method=meeting, rank=rank, world_size=size, timeout=patience)
    torch.manual_seed(rank)
    return rank, size


def is_used_where_it_is(tensor):
    return compiled.is_registered(tensor.data_ptr(), tensor.nbytes)


def register(tensor):
    """Use it as often as it takes, and until every rank knows of every other."""
    kept = tensor.clone()
    for _ in range(USES + 3):
        dist.all_reduce(tensor)
    assert is_used_where_it_is(tensor)
    return tensor.copy_(kept)


def same_as_copies(folder):
    rank, size = begin(folder)
    for count in SIZES:
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.float64):
            if count * dtype.itemsize < LEAST_BYTES:
                continue
            tensor = register((torch.randn(count) * 100).to(dtype))
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.AVG):
                tensor.copy_(kept := (torch.randn(count) * 100).to(dtype))
                copy = kept.clone()
                dist.all_reduce(tensor, op)
                dist.all_reduce(copy, op)
                assert torch.equal(tensor, copy)
            for root in range(size):
                tensor.copy_(kept).add_(rank)
                copy = tensor.clone()
                dist.reduce(tensor, root)
                dist.reduce(copy, root)
                assert torch.equal(tensor, copy)
                dist.broadcast(tensor, root)
                dist.broadcast(copy, root)
                assert torch.equal(tensor, copy)
            gathered = [[torch.empty_like(tensor) for _ in range(size)] for _ in range(2)]
            copy = tensor.copy_(kept).add_(rank).clone()
            for outputs, source in zip(gathered, (tensor, copy), strict=True):
                dist.all_gather(outputs, source)
            assert all(map(torch.equal, *gathered))
            assert torch.equal(tensor, copy)
            part = count // size * size
            if part * dtype.itemsize < LEAST_BYTES:
                continue
            whole = register(copy[:part].clone())
            parts = [torch.empty(part // size, dtype=dtype) for _ in range(2)]
            dist.reduce_scatter_tensor(parts[0], whole)
            dist.reduce_scatter_tensor(parts[1], whole.clone())
            assert torch.equal(*parts)
            assert is_used_where_it_is(tensor)
            assert is_used_where_it_is(whole)
    dist.destroy_process_group()


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_what_is_registered_has_the_bits_of_what_is_copied(tmp_path, num_ranks):
    run_ranks(same_as_copies, Started(num_ranks), str(tmp_path))


def forks(folder):
    rank, size = begin(folder)
    tensor = register(torch.full((300_000,), rank + 1.0))
    reads, writes = os.pipe()
    begun, begins = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(begun, 1)  # the parent has gone on
        is_as_before = torch.equal(tensor, torch.full((300_000,), rank + 1.0))
        tensor.zero_()
        os.write(writes, b"y" if is_as_before else b"n")
        os._exit(0)
    dist.all_reduce(tensor)
    os.write(begins, b"x")
    assert os.read(reads, 1) == b"y"
    os.waitpid(child, 0)
    assert torch.equal(tensor, torch.full((300_000,), size * (size + 1) / 2))
    assert is_used_where_it_is(tensor)
    dist.destroy_process_group()


def test_a_forked_process_has_copies_of_its_own(tmp_path):
    run_ranks(forks, Started(2), str(tmp_path))


def moved_away(folder):
    rank, _ = begin(folder)
    tensor = torch.full((8 << 20,), float(rank))  # 32 MiB: malloc gives it back to the kernel
    register(tensor)
    address, num_bytes = tensor.data_ptr(), tensor.untyped_storage().nbytes()
    tensor.untyped_storage().resize_(0)  # as FSDP does between two uses of its parameters
    tensor.untyped_storage().resize_(num_bytes)
    came_back = tensor.data_ptr() == address
    assert not is_used_where_it_is(tensor)
    tensor.fill_(rank + 1.0)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full_like(tensor, 3.0))
    dist.destroy_process_group()
    return came_back


def test_memory_that_went_away_and_came_back_is_not_taken_for_the_registered_one(tmp_path):
    run_ranks(moved_away, Started(2), str(tmp_path))


def given_back(folder):
    begin(folder)
    alias = register(torch.ones(300_000))[10:20]
    other = torch.ones(LEAST_BYTES // 4)
    for _ in range(SWEEP_EVERY):
        dist.all_reduce(other)
    assert len(registrations._kept) == 2
    kept = alias.clone()
    del alias
    for _ in range(SWEEP_EVERY):
        dist.all_reduce(other)
    assert len(registrations._kept) == 1
    assert torch.equal(kept, torch.ones(10))
    dist.destroy_process_group()


def test_a_storage_that_nobody_else_has_is_given_back(tmp_path):
    run_ranks(given_back, Started(2), str(tmp_path))


def new_ones(folder):
    begin(folder)
    for _ in range(4 * USES):
        dist.all_reduce(torch.ones(300_000))  # often at the same address
    assert not registrations._kept
    shared = torch.ones(300_000).share_memory_()
    mapped = torch.from_file(str(Path(folder) / f"file{os.environ['RANK']}"), shared=True, size=300_000)
    for _ in range(2 * USES):
        dist.all_reduce(shared)
        dist.all_reduce(mapped)
    assert not registrations._kept
    dist.destroy_process_group()


def test_what_is_new_in_every_step_or_belongs_to_a_file_stays_where_it_is(tmp_path):
    run_ranks(new_ones, Started(2), str(tmp_path))


def gone_wrong(folder):
    rank, _ = begin(folder, timeout=2.0)
    tensor = register(torch.full((300_000,), rank + 1.0))
    if rank == 0:
        with pytest.raises(dist.DistBackendError):
            dist.all_reduce(tensor)  # the other one does not come
        assert not is_used_where_it_is(tensor), "others may still write there"
        assert torch.equal(tensor, torch.full((300_000,), 1.0))
        Path(folder, "done").touch()
    else:
        while not Path(folder, "done").exists():
            os.sched_yield()
        with pytest.raises(dist.DistBackendError):
            dist.all_reduce(tensor)


def test_after_an_error_nobody_else_reaches_a_tensor(tmp_path):
    run_ranks(gone_wrong, Started(2), str(tmp_path))


def trained(folder, uses):
    registered.USES = uses
    rank, _ = begin(folder)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 2000), nn.ReLU(), nn.Linear(2000, 500)))
    optimizer = torch.optim.AdamW(model.parameters())
    generator = torch.Generator().manual_seed(rank)
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.randn(8, 64, generator=generator)).square().mean().backward()
        optimizer.step()
    kept = len(registrations._kept)
    dist.destroy_process_group()
    return kept, [parameter.detach().numpy().tobytes() for parameter in model.parameters()]


def folder(tmp_path, name):
    (tmp_path / name).mkdir()
    return str(tmp_path / name)


def test_ddp_has_the_same_bits_with_buckets_that_are_registered(tmp_path):
    (kept, with_them), *_ = run_ranks(trained, Started(2), folder(tmp_path, "with"), USES)
    (none, without), *_ = run_ranks(trained, Started(2), folder(tmp_path, "without"), 1 << 30)
    assert (none, kept > 0) == (0, True)
    assert with_them == without
