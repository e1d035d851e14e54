"""Slots are used again as soon as nobody holds their gradients, and never before."""

import pytest
import torch
from torch import nn

from lockstep.rank.strategy.replica.gradient_buffers import GradientBufferPool, PartialSums
from lockstep.rank.transport.alone import AloneTransport


def pool_of_one():
    return GradientBufferPool([nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 2))], AloneTransport(), 1)


def test_a_shared_slot_whose_gradient_was_held_is_taken_again_later():
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
