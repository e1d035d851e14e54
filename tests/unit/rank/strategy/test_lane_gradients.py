"""Gradient buffers: used again as soon as nobody holds their gradients and never before; a pool for each pattern of frozen parameters."""

import pytest
import torch
from torch import nn

from samebits.rank.strategy.replica.lane_gradients import (
    MOST_POOLS,
    GradientBufferPool,
    GradientBufferPools,
    PartialSums,
)
from samebits.rank.transport.alone import AloneTransport


def pool_of(*sizes):
    return GradientBufferPool([nn.Parameter(torch.ones(size)) for size in sizes], AloneTransport(), 0)


def test_a_buffer_is_used_again():
    pool = pool_of(10, 100_000)
    first = pool.take()
    for parameter, view in zip(pool.parameters, first.views, strict=True):
        parameter.grad = view
        parameter.grad = None
    del view
    pool.give_back(first)
    assert pool.take_unfilled() is first
    assert pool.take_unfilled() is not first


def test_a_buffer_of_which_the_script_keeps_a_gradient_is_not_used_again():
    pool = pool_of(10, 100_000)
    first = pool.take()
    pool.parameters[1].grad = first.views[1]
    kept = pool.parameters[1].grad
    pool.give_back(first)
    assert pool.take_unfilled() is not first
    assert kept.sum() == 0


def test_a_buffer_that_a_lane_still_holds_is_taken_in_the_next_pass_and_dropped_where_it_stays_held():
    pool = pool_of(10)
    of_lane, of_script = pool.take(), pool.take()
    held, kept = of_lane.views[0], of_script.views[0]
    pool.give_back(of_lane)
    assert pool.take_unfilled() is not of_lane
    del held
    pool.drop_held()
    assert pool.take_unfilled() is of_lane, "no buffer is made anew in each step"
    pool.give_back(of_script)
    pool.drop_held()
    del kept
    assert pool.take_unfilled() is not of_script, "what the script keeps is freed with its reference"


def test_small_gradients_start_from_zeros_and_all_of_a_full_buffer():
    pool = pool_of(10, 100_000)
    buffer = pool.take()
    for flat in buffer.flats:
        flat.fill_(3)
    pool.give_back(buffer)
    again = pool.take_unfilled()
    assert (again.views[0].sum(), again.views[1].sum()) == (0, 300_000)
    pool.give_back(again)
    assert sum(flat.abs().sum() for flat in pool.take().flats) == 0


def test_buckets_cover_every_parameter_once_last_parameters_first():
    pool = pool_of(5, 2_000_000, 7, 0, 600_000, 600_000)
    members = [member for bucket in pool.buckets for member in bucket.members]
    assert members == [5, 4, 2, 1, 0]
    assert all(bucket.start < bucket.end for bucket in pool.buckets)
    starts = [bucket.start for bucket in pool.buckets]
    assert starts == sorted(starts, reverse=True)


def pool_of_one():
    return GradientBufferPool([nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2))], AloneTransport(), 1)


def test_a_shared_buffer_whose_gradient_was_held_is_taken_again_later():
    pool = pool_of_one()
    shared = pool.take()
    kept = shared.views[0]
    pool.give_back(shared)
    own = pool.take()
    assert own is not shared
    pool.give_back(own)
    del kept
    assert {id(pool.take()), id(pool.take())} == {id(shared), id(own)}


def test_a_gradient_that_only_another_parameter_holds_is_held():
    pool, other = pool_of_one(), nn.Parameter(torch.zeros(3))
    buffer = pool.take()
    other.grad = buffer.views[0]
    pool.give_back(buffer)
    assert pool.take() is not buffer


def test_what_is_given_up_after_it_was_finished_is_not_given_back_twice():
    pool = pool_of_one()
    sums = PartialSums(pool, [(0, 1), (1, 2), (2, 3)], scaled=True)
    for lane in range(3):
        sums.add(lane, None, 0.0)
    result, _ = sums.result()
    sums.finish(result)
    sums.give_up()
    taken = [result, *(pool.take() for _ in range(4))]
    assert len({*map(id, taken)}) == len(taken)


@pytest.mark.parametrize(("device", "sizes"), [("cpu", [4] * 40), ("meta", [4, 64, 64, 28])])
def test_buckets_are_large_on_a_gpu_but_for_the_first(device, sizes):
    parameters = [nn.Parameter(torch.empty(1 << 18, device=device)) for _ in range(160)]  # "meta" stands for a GPU
    pool = GradientBufferPool(parameters, AloneTransport(), 0)
    assert [(bucket.end - bucket.start) >> 18 for bucket in pool.buckets] == sizes
    assert [number for bucket in pool.buckets for number in bucket.members] == [*reversed(range(160))]


class Counting(AloneTransport):
    """Knows how many tensors are allocated and not freed."""

    def __init__(self):
        super().__init__()
        self.held = 0

    def allocate(self, size, dtype, device):
        self.held += 1
        return super().allocate(size, dtype, device)

    def free(self, tensor):
        self.held -= 1
        super().free(tensor)


def freeze(parameters, frozen):
    for number, parameter in enumerate(parameters):
        parameter.requires_grad_(number != frozen)


def test_a_pattern_that_comes_back_has_its_pool():
    parameters = [nn.Parameter(torch.zeros(3)) for _ in range(MOST_POOLS)]
    pools = GradientBufferPools(Counting(), 1)
    found = []
    for frozen in range(MOST_POOLS):
        freeze(parameters, frozen)
        found.append(pools.of(parameters))
    assert [len(pool.parameters) for pool in found] == [MOST_POOLS - 1] * MOST_POOLS
    for frozen in range(MOST_POOLS):
        freeze(parameters, frozen)
        assert pools.of(parameters) is found[frozen]


def test_patterns_that_were_not_used_lately_give_their_memory_back():
    transport = Counting()
    parameters = [nn.Parameter(torch.zeros(3)) for _ in range(10)]
    pools = GradientBufferPools(transport, 1)
    for frozen in range(10):
        freeze(parameters, 0)
        first = pools.of(parameters)
        freeze(parameters, frozen)
        pools.of(parameters)
        assert transport.held == min(frozen + 1, MOST_POOLS)
    freeze(parameters, 0)
    assert pools.of(parameters) is first
    pools.close()
    assert transport.held == 0
