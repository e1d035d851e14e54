"""The backend "samebits" and what torch calls a tensor though it is not simply numbers in memory."""

from __future__ import annotations

import gc
import os
import warnings
import weakref

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor, all_reduce
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from samebits.testing.ranks import Started, run_ranks
from samebits.torch_backend import CollectiveMisused

pytestmark = pytest.mark.ranks


def begin(folder):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    warnings.filterwarnings("ignore", "all_gather_into_tensor|reduce_scatter_tensor|.*is deprecated", FutureWarning)
    dist.init_process_group("samebits", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    return rank, size


def under_way(value):
    """What a functional collective returns: a tensor whose numbers are in another one."""
    tensor = all_reduce(torch.full((4,), value), "max", dist.group.WORLD)
    assert type(tensor) is AsyncCollectiveTensor
    return tensor


def stand_ins(folder):
    rank, _ = begin(folder)
    for is_async in (False, True):
        total = under_way(2.0)
        work = dist.all_reduce(total, async_op=is_async)
        if is_async:
            work.wait()
        assert total.tolist() == [4.0] * 4
    everyone = torch.empty(8)
    dist.all_gather_into_tensor(everyone, under_way(3.0))
    dist.reduce_scatter_tensor(part := torch.empty(2), under_way(3.0))
    dist.all_to_all_single(dealt := torch.empty(4), under_way(5.0))
    dist.broadcast(shown := under_way(6.0), 1)
    assert (everyone.tolist(), part.tolist(), dealt.tolist()) == ([3] * 8, [6, 6], [5] * 4)
    assert shown.tolist() == [6] * 4
    if rank == 0:
        dist.send(under_way(7.0), 1)
    else:
        dist.recv(got := under_way(0.0), 0)
        assert got.tolist() == [7] * 4


def plain_here_and_odd_there(folder):
    """Rank 0 takes the short way through the compiled part, rank 1 the long one; both must describe one call."""
    rank, _ = begin(folder)

    def laid_out(tensor):
        return tensor if rank == 0 else torch.stack([tensor, tensor], dim=1)[:, 0]  # with gaps

    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8):
        for count in (1, 1001, 40_001, 300_007):  # in the row, one piece, several
            numbers = torch.arange(count).remainder(50)
            dist.broadcast(shown := laid_out((numbers + 7 * rank).to(dtype)), 1)
            dist.all_gather_into_tensor(
                everyone := laid_out(torch.zeros(2 * count, dtype=dtype)), laid_out((numbers + rank).to(dtype))
            )
            both = torch.arange(2 * count).remainder(50).to(dtype)
            dist.reduce_scatter_tensor(part := laid_out(torch.zeros(count, dtype=dtype)), laid_out(both))
            dist.all_reduce(total := laid_out((numbers + rank).to(dtype)))
            dist.all_to_all_single(dealt := laid_out(torch.zeros(2 * count, dtype=dtype)), laid_out(both + rank))
            assert torch.equal(shown, (numbers + 7).to(dtype))
            assert torch.equal(everyone, torch.cat([numbers, numbers + 1]).to(dtype))
            assert torch.equal(part, 2 * both[rank * count :][:count])
            assert torch.equal(total, (2 * numbers + 1).to(dtype))
            mine = both[rank * count :][:count]
            assert torch.equal(dealt, torch.cat([mine, mine + 1]))
    dist.destroy_process_group()


def test_a_call_may_be_plain_on_one_rank_and_odd_on_another(tmp_path):
    run_ranks(plain_here_and_odd_there, Started(2), str(tmp_path))


def test_a_tensor_of_a_functional_collective_is_waited_for_and_then_exchanged(tmp_path):
    run_ranks(stand_ins, Started(2), str(tmp_path))


def without_numbers(folder):
    begin(folder)
    mesh = init_device_mesh("cpu", (2,))
    with FakeTensorMode():
        fake = torch.ones(4)
    for tensor in (fake, distribute_tensor(torch.ones(4), mesh, [Shard(0)])):
        for call in (
            dist.all_reduce,
            lambda tensor: dist.all_reduce(tensor, async_op=True),
            lambda tensor: dist.broadcast(tensor, 0),
            lambda tensor: dist.all_gather_into_tensor(torch.empty(tensor.numel() * 2), tensor),
            lambda tensor: dist.all_to_all_single(torch.empty(4), tensor),
            lambda tensor: dist.send(tensor, 1 - dist.get_rank()),
        ):
            with pytest.raises(CollectiveMisused, match=f"{type(tensor).__name__}, which has no numbers of its own"):
                call(tensor)
    dist.all_reduce(total := torch.ones(2))  # nobody else was involved
    assert total.tolist() == [2, 2]


def test_a_tensor_without_numbers_is_refused(tmp_path):
    run_ranks(without_numbers, Started(2), str(tmp_path))


def made_for_inference(folder):
    begin(folder)
    with torch.inference_mode():
        columns = torch.ones(3, 3)[:, :2]
        work = dist.all_reduce(columns, async_op=True)
    work.wait()
    assert columns.tolist() == [[2, 2]] * 3
    normal = torch.ones(3, 3)[:, :2]
    with torch.inference_mode():
        dist.all_reduce(normal)
    assert normal.tolist() == [[2, 2]] * 3 and not normal.is_inference()


def test_a_tensor_of_inference_mode_gets_its_result_outside_of_it_too(tmp_path):
    run_ranks(made_for_inference, Started(2), str(tmp_path))


def unanswered(folder):
    rank, _ = begin(folder)
    awaited = dist.irecv(torch.empty(1), 1 - rank)
    kept = []
    for _ in range(30):
        tensor = torch.ones(1000)
        kept.append(weakref.ref(tensor))
        dist.all_reduce(tensor, async_op=True).wait()
        del tensor
    gc.collect()
    assert sum(reference() is not None for reference in kept) < 5
    dist.send(torch.ones(1), 1 - rank)
    awaited.wait()


def test_tensors_are_let_go_although_an_older_message_is_still_awaited(tmp_path):
    run_ranks(unanswered, Started(2), str(tmp_path))


def dealt_into_itself(folder):
    rank, _ = begin(folder)
    for size in (3, 200_000):
        parts = [torch.full((size,), 10.0 * rank + peer) for peer in (0, 1)]
        dist.all_to_all(parts[::-1], parts)
        assert [part.unique().tolist() for part in parts[::-1]] == [[rank], [10 + rank]]
        memory = torch.empty(3 * size)
        given, got = memory[: 2 * size], memory[size:]
        given[:size], given[size:] = 10.0 * rank, 10.0 * rank + 1
        dist.all_to_all_single(got, given)
        assert [part.unique().tolist() for part in got.chunk(2)] == [[rank], [10 + rank]]


def test_all_to_all_gives_the_right_numbers_when_what_comes_lies_over_what_goes_to_another(tmp_path):
    run_ranks(dealt_into_itself, Started(2), str(tmp_path))


def over_each_other(folder):
    rank, _ = begin(folder)
    for size in (4, 200_000):
        memory = torch.empty(5 * size)  # uneven all_gather
        own = memory[size : 3 * size] if rank == 0 else memory[: 3 * size]
        dist.all_gather([memory[: 2 * size], memory[2 * size :]], own.fill_(rank + 1.0))
        assert memory.tolist() == [1.0] * 2 * size + [2.0] * 3 * size
        memory = torch.empty(2 * size)
        first, second = memory[:size].fill_(1.0 + rank), memory[size:].fill_(10.0 + rank)
        middle = memory[size // 2 : size // 2 + size]
        dist.reduce_scatter(middle, [first, second])
        assert middle.unique().tolist() == [(3, 21)[rank]]
        first, second = torch.full((size,), 1.0 + rank), torch.full((2 * size,), 10.0 + rank)
        part = second[:size] if rank == 0 else torch.empty(2 * size)
        dist.reduce_scatter(part, [first, second])  # uneven
        assert part.unique().tolist() == [(3, 21)[rank]]
        first, columns = torch.full((size,), 1.0 + rank), torch.full((size, 2), 10.0 + rank).t()
        part = columns.t().view(-1)[:size] if rank == 0 else torch.empty(2, size)
        dist.reduce_scatter(part, [first, columns])  # uneven, and one of them is copied
        assert part.unique().tolist() == [(3, 21)[rank]]


def test_results_that_lie_over_what_is_still_read_are_right(tmp_path):
    run_ranks(over_each_other, Started(2), str(tmp_path))
