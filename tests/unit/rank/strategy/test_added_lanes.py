"""Lanes that are added to the sum of earlier ones as their gradients arrive: the bits of lanes that are added afterwards."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from lockstep.errors import UsageError
from lockstep.protocol.layout.tree import maximal_subtrees, merges_after
from lockstep.rank.strategy.replica.gradient_buffers import COPIED_BYTES, PartialSums, SlotPool
from lockstep.rank.strategy.replica.lanes import SlotLane
from lockstep.rank.transport.alone import AloneTransport

VALUES = (-0.0, 0.0, 1e-8, 0.1, -0.1, 3.0, 16777216.0, -16777216.0)


def arrived(lane, number, notes):
    def hook(_):
        lane.gradient_arrived(number) if notes is None else notes.append(number)

    return hook


def sums_of(lanes, parameters, losses, *, as_they_arrive, notes_small=False):
    """The bits of the sums of `lanes`, whose backwards autograd runs as in a pass."""
    pool = SlotPool(parameters, AloneTransport(), 0)
    sums = PartialSums(pool, maximal_subtrees(max(lanes) + 1, lanes[0], lanes[-1] + 1), scaled=True)
    added = 0
    for lane in lanes:
        notes = []
        opened = SlotLane(lane, pool, notes, sums.onto(lane) if as_they_arrive else None)
        added += opened.is_added
        hooks = [
            parameter.register_post_accumulate_grad_hook(
                arrived(opened, number, None if pool.is_copied[number] or not notes_small else notes)
            )
            for number, parameter in enumerate(parameters)
        ]
        losses(lane).backward()
        for hook in hooks:
            hook.remove()
        opened.backward_finished()
        opened.check_untouched()
        opened.fill()
        sums.add(lane, opened.slot, 1.0)
    bits = [flat.clone().view(torch.int32) for parts in map(sums.bucket, pool.buckets) for flat in parts]
    sums.give_up()
    return bits, added


@given(first=st.integers(0, 5), count=st.integers(1, 9), seed=st.integers(0, 1000), notes_small=st.booleans())
def test_a_sum_has_the_same_bits_however_its_lanes_are_added(first, count, seed, notes_small):
    numbers = torch.Generator().manual_seed(seed)
    large = COPIED_BYTES // 4 + 3
    parameters = [nn.Parameter(torch.ones(size)) for size in (5, large, 7)]
    table = torch.tensor(VALUES)
    gradients = [
        [table[torch.randint(len(VALUES), p.shape, generator=numbers)] for p in parameters]
        for _ in range(first + count)
    ]

    def losses(lane):
        used = [n for n in range(3) if (lane + n + seed) % 4]  # some lanes miss a parameter
        return sum((parameters[n] * gradients[lane][n]).sum() for n in used)

    lanes = range(first, first + count)
    apart, _ = sums_of(lanes, parameters, losses, as_they_arrive=False)
    arriving, added = sums_of(lanes, parameters, losses, as_they_arrive=True, notes_small=notes_small)
    assert all(map(torch.equal, apart, arriving))
    assert added == sum(bool(merges_after(lane, maximal_subtrees(max(lanes) + 1, first, lanes.stop))) for lane in lanes)


@pytest.mark.parametrize("notes_small", [False, True])
def test_sparse_gradients_are_put_together_before_they_are_added(notes_small):
    table = nn.Parameter(torch.zeros(10, 4))
    rows = torch.tensor([1, 1, 1, 3])
    weights = torch.tensor([16777216.0, 1.0, 1.0, 0.1])[:, None]

    def losses(_):
        return (F.embedding(rows, table, sparse=True) * weights).sum()

    apart, _ = sums_of(range(4), [table], losses, as_they_arrive=False)
    arriving, added = sums_of(range(4), [table], losses, as_they_arrive=True, notes_small=notes_small)
    assert added == 2
    assert all(map(torch.equal, apart, arriving))


def test_a_lane_that_is_added_gets_one_gradient_for_each_parameter():
    parameter = nn.Parameter(torch.ones(4))
    pool = SlotPool([parameter], AloneTransport(), 0)
    sums = PartialSums(pool, [(0, 2)], scaled=True)
    first = SlotLane(0, pool, [])
    for _ in range(2):
        parameter.sum().backward()
        first.gradient_arrived(0)
    assert first.came_twice
    sums.add(0, first.slot, 1.0)
    second = SlotLane(1, pool, [], sums.onto(1))
    parameter.sum().backward()
    second.gradient_arrived(0)
    parameter.sum().backward()
    with pytest.raises(UsageError, match="use_reentrant=False"):
        second.gradient_arrived(0)


def test_gradients_that_were_only_noted_are_added_once_or_not_at_all():
    parameters = [nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(2))]
    pool = SlotPool(parameters, AloneTransport(), 0)

    def second():
        sums, notes = PartialSums(pool, [(0, 2)], scaled=True), []
        sums.add(0, pool.take(), 1.0)
        return SlotLane(1, pool, notes, sums.onto(1)), notes

    lane, notes = second()
    parameters[0].sum().backward()
    notes += [0, 0]
    with pytest.raises(UsageError, match="use_reentrant=False"):
        lane.backward_finished()
    lane, notes = second()
    parameters[0].sum().backward()
    notes += [0, 1]  # a hook of the script took the other one away
    with pytest.raises(UsageError, match="removed a parameter's gradient"):
        lane.backward_finished()


@pytest.mark.parametrize("size", [4, COPIED_BYTES], ids=["small", "large"])
def test_a_gradient_that_was_added_to_earlier_lanes_may_not_be_written_by_a_hook(size):
    first, parameter = nn.Parameter(torch.ones(COPIED_BYTES)), nn.Parameter(torch.ones(size))
    pool = SlotPool([first, parameter], AloneTransport(), 0)
    sums = PartialSums(pool, [(0, 2)], scaled=True)
    sums.add(0, pool.take(), 1.0)
    lane = SlotLane(1, pool, [], sums.onto(1))
    (first.sum() + parameter.sum()).backward()
    lane.gradient_arrived(0)
    lane.gradient_arrived(1)
    parameter.grad.mul_(2)
    with pytest.raises(UsageError, match="wrote into a parameter's gradient"):
        lane.backward_finished()


def test_gradients_that_are_added_up_in_another_dtype_get_a_slot_of_their_own():
    parameter = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    pool = SlotPool([parameter], AloneTransport(), 0)
    sums = PartialSums(pool, [(0, 2)], scaled=True)
    sums.add(0, pool.take(), 1.0)
    assert sums.onto(1) is None


def test_lanes_with_tables_get_slots_of_their_own():
    parameter = nn.Parameter(torch.ones(4, 2))
    pool = SlotPool([parameter], AloneTransport(), 0, tables=frozenset({0}))
    sums = PartialSums(pool, [(0, 2)], scaled=True)
    sums.add(0, pool.take(), 1.0)
    assert sums.onto(1) is None


def test_a_small_table_is_neither_zeroed_before_a_lane_nor_only_noted():
    table, bias = nn.Parameter(torch.ones(6, 2)), nn.Parameter(torch.ones(3))
    pool = SlotPool([table, bias], AloneTransport(), 0, tables=frozenset({0}))
    assert pool.is_copied == [True, False]
    stale = pool.take()
    stale.views[0].fill_(float("nan"))
    pool.give_back(stale)
    del stale
    lane = SlotLane(0, pool, [])
    assert table.grad is None
    assert lane.slot.views[0].isnan().all()
    (F.embedding(torch.tensor([1, 1, 4]), table, sparse=True).sum() + bias.sum()).backward()
    assert not lane.gradient_arrived(0)  # for a bucket there is none
    lane.backward_finished()
    assert table.grad is lane.slot.views[0]
    assert table.grad[:, 0].tolist() == [0, 2, 0, 0, 1, 0]
    lane.check_untouched()
    lane.begin_backward()
    (table.sum() * 2).backward()
    assert lane.gradient_arrived(0)
    lane.backward_finished()
    lane.check_untouched()
    assert lane.came_twice
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
    pool = SlotPool([table, early], AloneTransport(), 0, tables=frozenset({0}))
    lane = SlotLane(0, pool, [], sparse=sparse)
    hook = table.register_post_accumulate_grad_hook(arrived(lane, 0, None))
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
