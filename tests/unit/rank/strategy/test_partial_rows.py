"""Sums of lanes in which a table has rows in some and is whole in others, with weights of any kind."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from samebits.errors import UsageError
from samebits.protocol.layout.placement import place
from samebits.rank.strategy.replica.lane_gradients import GradientBufferPool, PartialSums
from samebits.rank.strategy.replica.lanes import BufferedLane
from samebits.rank.strategy.replica.sparse_embedding import Rows, agreed
from samebits.rank.transport.alone import AloneTransport

SHAPES = [(3, 2), (40, 4), (5,), (50, 3)]
TABLES = frozenset({1, 3})


def lanes_of(dtype, kinds):
    """For each lane, rows of its tables (None: whole), and what is in the other parameters; the same every time."""
    torch.manual_seed(0)
    found = []
    for kind in kinds:
        whole = [torch.randn(shape).to(dtype) for shape in SHAPES]
        rows = {number: Rows.summed(torch.randint(len(whole[number]), (6,)), whole[number][:6]) for number in TABLES}
        if kind == "rows":
            found.append((whole, rows))
        elif kind == "unused":
            found.append((whole, {number: Rows.none(whole[number], dtype) for number in TABLES}))
        else:
            found.append((whole, rows | {3: None} if kind == "one whole" else dict.fromkeys(TABLES)))
    return found


def summed(dtype, kinds, weights, by_rows):
    """The sum of one rank's lanes, either way; the numbers that stayed rows; whole tensors."""
    pool = GradientBufferPool(
        [nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in SHAPES], AloneTransport(), 0, tables=TABLES
    )
    placement = place(len(kinds), 1)
    sums = PartialSums(pool, placement.subtrees(0), scaled=True)
    for lane, ((whole, rows), weight) in enumerate(zip(lanes_of(dtype, kinds), weights, strict=True)):
        if kinds[lane] == "empty":
            sums.add(lane, None, 0.0)
            continue
        buffer = pool.take()
        for number, view in enumerate(buffer.views):
            given = rows.get(number)
            if given is None:
                view.copy_(whole[number] + 0)
            elif by_rows:
                view.fill_(float("nan"))  # its place means nothing
            else:
                given.fill(view)
        sums.add(lane, buffer, weight, {n: one for n, one in rows.items() if one is not None} if by_rows else None)
    counts = sums.num_rows()
    parts = sums.rows(counts.keys())
    buffer, wide = sums.result()
    views = [view.clone() for view in buffer.views]
    for bucket in pool.buckets:
        for number in bucket.members:
            segment = pool.segments[number]
            views[number] = (
                wide[bucket.flat][segment.offset : segment.offset + segment.size].view(SHAPES[number]).clone()
            )
    for number, [rows] in parts.items():
        assert rows.index.numel() <= counts[number]
        rows.fill(views[number])
    return views, set(counts)


def bytes_of(tensor):
    return tensor.contiguous().view(torch.uint8).view(*tensor.shape, tensor.element_size())


CASES = {
    "rows in all lanes": (["rows"] * 4, [1.0] * 4, TABLES),
    "weights": (["rows"] * 5, [1.0, 0.5, 1 / 3, 0.0, 1.0], TABLES),
    "a lane without samples": (["rows", "empty", "rows", "empty"], [1.0] * 4, TABLES),
    "a lane that did not use the tables": (["unused", "rows", "unused"], [1.0, 0.7, 0.3], TABLES),
    "a whole table in one lane": (["rows", "rows", "one whole", "rows"], [1.0, 0.5, 1.0, 0.5], {1}),
    "all whole in one lane": (["rows", "whole"], [0.5, 1.0], set()),
    "a weight below zero": (["rows", "rows"], [1.0, -0.5], set()),
    "a weight without end": (["rows", "rows"], [1.0, float("inf")], set()),
    "no number": (["rows", "rows"], [float("nan"), 1.0], set()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("kinds", "weights", "stay"), CASES.values(), ids=CASES)
def test_the_sum_has_the_bits_of_whole_tables(kinds, weights, stay, dtype):
    whole, none = summed(dtype, kinds, weights, by_rows=False)
    by_rows, stayed = summed(dtype, kinds, weights, by_rows=True)
    assert not none or "empty" in kinds
    assert stayed == set(stay)
    for left, right in zip(whole, by_rows, strict=True):
        same = bytes_of(left) == bytes_of(right)
        assert (same.all(-1) | (left.isnan() & right.isnan())).all()


def test_a_rank_without_lanes_has_no_row_of_any_table():
    pool = GradientBufferPool([nn.Parameter(torch.ones(shape)) for shape in SHAPES], AloneTransport(), 0, tables=TABLES)
    sums = PartialSums(pool, [], scaled=True)
    assert sums.num_rows() == {1: 0, 3: 0}
    assert sums.rows({1, 3}) == {1: [], 3: []}


def test_an_unused_table_is_whole_on_every_rank_where_a_lane_s_weight_makes_no_zeros_of_it():
    """Else a rank that has no other lane would leave out what another number of ranks adds."""
    pool = GradientBufferPool([nn.Parameter(torch.ones(shape)) for shape in SHAPES], AloneTransport(), 0, tables=TABLES)
    sums = PartialSums(pool, [(0, 1)], scaled=True)
    buffer = pool.take()
    sums.add(0, buffer, float("inf"), {n: Rows.none(buffer.views[n], torch.float32) for n in TABLES})
    assert agreed([sums.num_rows(), dict.fromkeys(TABLES, 5)]) == {}
    assert buffer.views[1].isnan().all()


def test_a_small_table_is_neither_zeroed_before_a_lane_nor_only_noted():
    table, bias = nn.Parameter(torch.ones(6, 2)), nn.Parameter(torch.ones(3))
    pool = GradientBufferPool([table, bias], AloneTransport(), 0, tables=frozenset({0}))
    assert pool.is_copied == [True, False]
    stale = pool.take()
    stale.views[0].fill_(float("nan"))
    pool.give_back(stale)
    del stale
    lane = BufferedLane(0, pool, [])
    assert table.grad is None
    assert lane.buffer.views[0].isnan().all()
    (F.embedding(torch.tensor([1, 1, 4]), table, sparse=True).sum() + bias.sum()).backward()
    assert not lane.gradient_arrived(0)  # for a bucket there is none
    lane.backward_finished()
    assert table.grad is lane.buffer.views[0]
    assert table.grad[:, 0].tolist() == [0, 2, 0, 0, 1, 0]
    lane.check_untouched()
    lane.begin_backward()
    (table.sum() * 2).backward()
    assert lane.gradient_arrived(0)
    lane.backward_finished()
    lane.check_untouched()
    assert table.grad[:, 0].tolist() == [2, 4, 2, 2, 3, 2]
    assert lane.fill() == {}
    table.grad[0] += 1
    with pytest.raises(UsageError, match="grad"):
        lane.check_untouched()


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, _):
        raise ValueError("in backward")


@pytest.mark.parametrize("before", [0, 1], ids=["the first backward", "the second"])
@pytest.mark.parametrize("sparse", [frozenset(), frozenset({0})], ids=["seen whole", "seen sparse"])
def test_a_table_whose_rows_arrived_in_a_backward_that_failed_cannot_be_taken_for_complete(before, sparse):
    table, early = nn.Parameter(torch.zeros(10, 4)), nn.Parameter(torch.ones(4))
    pool = GradientBufferPool([table, early], AloneTransport(), 0, tables=frozenset({0}))
    lane = BufferedLane(0, pool, [], sparse=sparse)

    def arrived(_):
        lane.gradient_arrived(0)

    hook = table.register_post_accumulate_grad_hook(arrived)
    rows = torch.tensor([1, 3])
    for _ in range(before):
        lane.begin_backward()
        F.embedding(rows, table, sparse=True).sum().backward()
        lane.backward_finished()
        lane.check_untouched()
    lane.begin_backward()
    with pytest.raises(ValueError, match="in backward"):
        (Fails.apply(early) + F.embedding(rows, table, sparse=True)).sum().backward()
    hook.remove()
    assert table.grad.layout is torch.sparse_coo, "its rows came first"
    with pytest.raises(UsageError, match="Gradients were changed"):
        lane.check_untouched()
