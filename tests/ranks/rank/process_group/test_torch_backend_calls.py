"""The backend "samebits" takes the calls, reductions and lists that Gloo and NCCL take, and shows itself as they do."""

from __future__ import annotations

import datetime as dt
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed.tensor.debug import CommDebugMode

from samebits.testing.ranks import Started, run_ranks
from samebits.torch_backend import CollectiveFailed, CollectiveMisused

pytestmark = pytest.mark.ranks


def begin(folder):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("samebits", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
    return rank, size


def reduced(values, op, dtype):
    tensor = torch.tensor(values, dtype=dtype)
    dist.all_reduce(tensor, op)
    return tensor.tolist()


def reductions(rank):
    bits = [0b1100, 0b1010][rank]
    for op, expected in ((dist.ReduceOp.BAND, 0b1000), (dist.ReduceOp.BOR, 0b1110), (dist.ReduceOp.BXOR, 0b0110)):
        for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
            assert reduced([bits] * 5, op, dtype) == [expected] * 5
        assert reduced([bool(rank)], op, torch.bool) == [op != dist.ReduceOp.BAND]
    assert reduced([[3, -7], [4, -8]][rank], dist.ReduceOp.AVG, torch.int64) == [3, -7]  # 7 / 2 and -15 / 2
    assert reduced([1 + 2j, 3j * rank], dist.ReduceOp.AVG, torch.complex64) == [1 + 2j, 1.5j]
    halved = c10d._make_nccl_premul_sum(0.5 + rank)
    assert reduced([4.0], halved, torch.float32) == [8.0]
    assert reduced([1.0, 2.5], dist.ReduceOp.SUM, torch.float8_e4m3fn) == [2.0, 5.0]
    dist.reduce_scatter_tensor(part := torch.zeros(1, dtype=torch.int32), torch.tensor([5, 6]).int(), dist.ReduceOp.AVG)
    assert part.tolist() == [5 + rank]


def aliases(rank, group):
    """What one call reads, no other part of the call has written."""
    one = torch.ones(2)
    dist.all_reduce_coalesced([one, one])
    assert one.tolist() == [2, 2]
    long = torch.tensor([1.0, 10.0, 100.0])
    group.allreduce_coalesced([long[:2], long[1:]]).wait()
    assert long.tolist() == [2, 20, 200]
    same = torch.zeros(2)
    dist.all_gather([same, same], torch.full((2,), float(rank)))
    assert same.tolist() == [1, 1]  # in the order of the list
    dealt = torch.zeros(1)
    dist.all_to_all([dealt, dealt], [torch.tensor([float(2 * rank)]), torch.tensor([float(2 * rank + 1)])])
    assert dealt.tolist() == [2 + rank]
    both = torch.arange(4.0)
    group.allgather_into_tensor_coalesced([both, torch.zeros(4)], [both[:2].clone(), both[2:]]).wait()
    assert both.tolist() == [0, 1, 0, 1]


def shapes_of_calls(rank, group):
    """Several tensors for each rank, as torch's interface has had them; what Gloo's methods take by name."""
    group.allreduce(several := [torch.full((2,), float(rank)), torch.full((2,), 2.0)]).wait()
    assert [each.tolist() for each in several] == [[5, 5], [5, 5]]
    group.broadcast(root := torch.tensor([float(rank)]), root=1).wait()
    group.reduce(total := torch.ones(1), root=0).wait()
    assert (root.item(), total.item()) == (1, 2 - rank)
    gathered = [torch.zeros(1), torch.zeros(1)]
    group.gather([gathered] if rank == 1 else [], [torch.tensor([float(rank)])], root=1).wait()
    assert [each.item() for each in gathered] == [0, rank]
    group.scatter([got := torch.zeros(1)], [[torch.ones(1), torch.full((1,), 3.0)]] if rank == 0 else [], root=0).wait()
    assert got.item() == 1 + 2 * rank
    options = c10d.BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 1
    group.broadcast(copies := [torch.zeros(1), torch.full((1,), 4.0 + rank)], options).wait()
    assert [each.item() for each in copies] == [4, 4]
    lists = [[torch.zeros(1) for _ in range(4)] for _ in range(2)]
    group.allgather(lists, [torch.full((1,), 10.0 * rank), torch.full((1,), 10.0 * rank + 1)]).wait()
    assert [[each.item() for each in row] for row in lists] == [[0, 1, 10, 11]] * 2


def is_shown():
    tensor = torch.ones(4)
    with CommDebugMode() as counted:
        dist.all_reduce(tensor)
        dist.all_gather_into_tensor(torch.empty(8), tensor, async_op=True).wait()
        dist.barrier()
    names = {str(name).partition(".")[2] for name, count in counted.get_comm_counts().items() for _ in range(count)}
    assert {"allreduce_", "_allgather_base_"} <= names
    with torch.profiler.profile() as profile:
        dist.all_reduce(tensor)
        dist.broadcast(tensor, 0, async_op=True).wait()
        dist.barrier()
    events = {event.key for event in profile.key_averages()}
    assert {"samebits:all_reduce", "samebits:broadcast", "samebits:barrier", "c10d::allreduce_"} <= events
    assert tensor.tolist() == [4] * 4


def rows_and_choices(rank):
    """What works over other backends works here: a row for a column, NumPy's numbers, choices that no `if` shows."""
    dist.all_reduce(column := torch.ones((4, 1) if rank else 4))
    assert column.sum() == 8
    assert dist.get_process_group_ranks(dist.new_group(list(np.arange(2)) if rank else [0, 1])) == [0, 1]
    for turn in range(4):
        {True: give, False: take}[turn % 2 == rank]()
        (turn % 2 == rank and [give()]) or [take()]


def give():
    dist.all_reduce(torch.ones(3))


def take():
    dist.all_reduce(torch.zeros(3))


def calls(folder):
    rank, _ = begin(folder)
    group = dist.group.WORLD
    reductions(rank)
    aliases(rank, group)
    shapes_of_calls(rank, group)
    is_shown()
    rows_and_choices(rank)
    monitored, impatient = dist.new_group(), dist.new_group()
    dist.monitored_barrier(monitored)
    if rank == 0:
        with pytest.raises(CollectiveFailed, match=r"Rank 1 failed to pass monitoredBarrier in 200 ms") as caught:
            dist.monitored_barrier(monitored, dt.timedelta(seconds=0.2))
        assert "Rank 1 did not come within the timeout of 0.2 s" in str(caught.value)
        with pytest.raises(CollectiveFailed, match=r"Rank 0 timed out in monitoredBarrier"):
            impatient.monitored_barrier(dt.timedelta(0))  # no time, and not the group's
    dist.barrier()


def test_reductions_lists_and_calls_are_those_of_gloo_and_nccl_and_are_shown_as_theirs(tmp_path):
    run_ranks(calls, Started(2), str(tmp_path))


def swapped(rank, group):
    first, second = torch.full((3,), 1.0), torch.full((3,), 2.0)
    if rank == 0:
        dist.all_reduce(first, group=group)
        dist.all_reduce(second, group=group)
    else:
        dist.all_reduce(second, group=group)
        dist.all_reduce(first, group=group)


def turned(rank, group):
    dist.all_reduce(torch.ones((2, 3) if rank == 0 else (3, 2)), group=group)


def gathered_in_another_size(rank, group):
    """torch calls this function deprecated, so another file's function stands around it."""
    given = torch.ones(2 + rank)
    dist.all_gather_into_tensor(torch.empty(2 * given.numel()), given, group)


def scattered_late_in_another_size(rank, group):
    given = torch.ones(2 * (2 + rank))
    dist.reduce_scatter_tensor(torch.empty(2 + rank), given, group=group, async_op=True).wait()


def sent_in_another_shape(rank, group):
    if rank == 0:
        dist.send(torch.ones(2, 3), 1, group)
        dist.barrier(group)  # it went on, and hears it here
    else:
        dist.recv(torch.ones(3, 2), 0, group)


def another_call(rank, _):
    if rank == 0:
        dist.all_reduce(torch.ones(1))
    else:
        dist.new_group([1])


MISMATCHES = {
    swapped: r"The ranks make the same calls in different orders.* rank 0: FILE:\d+, then FILE:\d+; rank 1: FILE:\d+, then",
    turned: r"rank 0: all_reduce\(sum\) of 2 x 3 float32 at FILE:\d+; rank 1: all_reduce\(sum\) of 3 x 2 float32 at FILE:\d+",
    gathered_in_another_size: r"rank 0: all_gather of 2 float32 at FILE:\d+; rank 1: all_gather of 3 float32 at FILE:\d+",
    scattered_late_in_another_size: r"rank 0: reduce_scatter\(sum\) of .* at FILE:\d+; rank 1: .* at FILE:\d+",
    sent_in_another_shape: r"Rank 0 sends 2 x 3 float32 with tag 0 at FILE:\d+, but rank 1 receives 3 x 2 float32 at FILE:\d+",
    another_call: r"rank 0: all_reduce\(sum\) of 1 float32 at FILE:\d+; rank 1: new_group of 1 at FILE:\d+ for the ranks \[1\]",
}


def right_in_two_branches(rank, group):
    """Ranks may make one call from two places, in turn."""
    tensor = torch.ones(2)
    for turn in range(6):
        if rank == turn % 2:
            dist.all_reduce(tensor, group=group)
        else:
            dist.all_reduce(torch.zeros(2), group=group)
        if rank == 0:
            dist.broadcast(tensor, 0, group)
        else:
            dist.broadcast(torch.empty(2), 0, group)


def mismatches(folder):
    rank, _ = begin(folder)
    right_in_two_branches(rank, dist.new_group())
    for call, sentence in MISMATCHES.items():
        with pytest.raises(CollectiveMisused) as caught:
            call(rank, dist.new_group() if call is not another_call else None)
        assert re.search(sentence.replace("FILE", re.escape(Path(__file__).name)), str(caught.value)), caught.value


def test_swapped_calls_other_shapes_messages_and_groups_raise_on_every_rank_with_both_lines(tmp_path):
    run_ranks(mismatches, Started(2), str(tmp_path))


def parts_of_parts(folder):
    rank, _ = begin(folder)
    half, _ = dist.new_subgroups(group_size=2)
    alone, _ = dist.new_subgroups(group_size=1, group=half)  # ranks 0 and 1 make different groups from 2 and 3
    assert dist.get_process_group_ranks(alone) == [rank]
    dist.all_reduce(total := torch.tensor(rank), group=half)
    assert total.item() == (1, 5)[rank // 2]


def test_new_subgroups_of_a_group_are_agreed_on_by_its_ranks_alone(tmp_path):
    run_ranks(parts_of_parts, Started(4), str(tmp_path))
