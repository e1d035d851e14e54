"""The pretended device refuses and hides what a GPU would, besides what the mutants show: memory, faults, NCCL."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from samebits.testing.ranks import RankFailed, Started, run_ranks
from tests.pretend.ledger import counted

pytestmark = pytest.mark.ranks
DEVICE = torch.device("cuda", 0)


def test_a_copy_to_pinned_memory_is_seen_only_by_those_who_wait():
    on_device, host = torch.arange(3.0, device=DEVICE), torch.zeros(3).pin_memory()
    host.copy_(on_device, non_blocking=True)
    on_device.zero_()
    assert host.isnan().all()
    torch.cuda.current_stream().synchronize()
    assert host.tolist() == [0.0, 1.0, 2.0], "the stream has read it before it became zero"


def test_an_operation_without_a_deterministic_form_raises_where_that_is_asked_for():
    def loss():
        return F.cross_entropy(
            torch.ones(1, 3, 2, 2, device=DEVICE), torch.zeros(1, 2, 2, dtype=torch.long, device=DEVICE)
        )

    assert loss().isfinite()
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match=r"nll_loss2d_forward.*does not have a deterministic implementation"):
            loss()
    finally:
        torch.use_deterministic_algorithms(False)


def test_more_than_the_memory_is_an_error_and_the_peak_is_told():
    torch.ops.pretend.limit_memory(1, 1 << 20)
    torch.cuda.reset_peak_memory_stats(1)
    before = torch.cuda.memory_allocated(1)
    torch.empty(1 << 19, dtype=torch.uint8, device="cuda:1")
    assert torch.cuda.max_memory_allocated(1) - before == 1 << 19
    try:
        with pytest.raises(torch.OutOfMemoryError, match=r"CUDA out of memory. Tried to allocate 2 MiB. GPU 1 has"):
            torch.empty(1 << 21, dtype=torch.uint8, device="cuda:1")
    finally:
        torch.ops.pretend.limit_memory(1, 1 << 62)


def assert_in_a_kernel():
    """A fault is told by the next call, and by all that follow."""
    torch.ops.pretend.plant_fault("neg")
    ones = torch.ones(2, device=DEVICE)
    failed = -ones
    for call in (failed.sum, failed.tolist, torch.cuda.synchronize):
        with pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
            call()


def test_a_fault_is_told_later_and_for_ever():
    assert run_ranks(assert_in_a_kernel, Started(1)) == [None]


def join(path):
    rank = int(os.environ["RANK"])
    dist.init_process_group("nccl", init_method=f"file://{path}", rank=rank, world_size=2)
    return rank


def on_one_device(path):
    join(path)
    torch.cuda.set_device(0)
    dist.all_reduce(torch.ones(2, device=DEVICE))


def test_two_ranks_on_one_device_are_refused_as_by_nccl(tmp_path):
    with pytest.raises(RankFailed, match=r"Duplicate GPU detected : rank . and rank . both on cuda:0"):
        run_ranks(on_one_device, Started(2), str(tmp_path / "store"))


def exchanges(path):
    rank = join(path)
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    everyone = torch.zeros(2, device=device)
    work = dist.all_gather_single(everyone, torch.full((1,), float(rank), device=device), async_op=True)
    assert everyone.isnan().all(), "not before wait"
    work.wait()
    assert everyone.tolist() == [0.0, 1.0]

    for refused, why in (
        (torch.ones(2), "No backend type associated with device type cpu"),
        (torch.ones(2, device=torch.device("cuda", 3)), "on cuda:3, but the current device is"),
        (torch.ones(2, 2, device=device).t()[:1], "must be contiguous"),
    ):
        with pytest.raises((RuntimeError, ValueError), match=why):
            dist.all_reduce(refused)

    arrived = torch.zeros(2, device=device)
    sent = torch.full((2,), rank + 5.0, device=device)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, 1 - rank), dist.P2POp(dist.irecv, arrived, 1 - rank)])
    sent.zero_()
    with counted() as counts:
        for each in works:
            each.wait()
    assert counts["sent data changed before wait"] == 1
    assert arrived.tolist() == [6.0 - rank] * 2
    torch.ops.pretend.clear_counts()  # or the plugin would complain


def test_what_nccl_brings_is_seen_after_wait_and_what_it_refuses_is_refused(tmp_path):
    run_ranks(exchanges, Started(2), str(tmp_path / "store"))


def left_alone(path):
    rank = join(path)
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    ones, group = torch.ones(2, device=device), dist.group.WORLD
    dist.all_reduce(ones)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(ones, async_op=True)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(work.wait)
        with pytest.raises(TimeoutError):
            waiting.result(0.5)
        group.abort()
        with pytest.raises(RuntimeError, match="NCCL communicator was aborted on rank 0"):
            waiting.result(60)
    with pytest.raises(RuntimeError, match="NCCL communicator was aborted on rank 0"):
        dist.all_reduce(ones)
    Path(path).with_name("told").touch()


def test_who_waits_in_nccl_for_a_rank_that_is_gone_hears_only_of_an_abort_of_its_own(tmp_path):
    with pytest.raises(RankFailed, match="rank 1 failed"):
        run_ranks(left_alone, Started(2), str(tmp_path / "store"))
    assert (tmp_path / "told").exists()
