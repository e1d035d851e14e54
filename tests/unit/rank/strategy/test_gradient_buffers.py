"""Slots of gradients: reused from step to step, unless the script keeps one of them."""

import torch
from torch import nn

from lockstep.rank.strategy.replica.gradient_buffers import GradientBufferPool
from lockstep.rank.transport.alone import AloneTransport


def pool_of(*sizes):
    return GradientBufferPool([nn.Parameter(torch.ones(size)) for size in sizes], AloneTransport(), 0)


def test_a_slot_is_used_again():
    pool = pool_of(10, 100_000)
    first = pool.take()
    for parameter, view in zip(pool.parameters, first.views, strict=True):
        parameter.grad = view
        parameter.grad = None
    del view
    pool.give_back(first)
    assert pool.take_unfilled() is first
    assert pool.take_unfilled() is not first


def test_a_slot_of_which_the_script_keeps_a_gradient_is_not_used_again():
    pool = pool_of(10, 100_000)
    first = pool.take()
    pool.parameters[1].grad = first.views[1]
    kept = pool.parameters[1].grad
    pool.give_back(first)
    assert pool.take_unfilled() is not first
    assert kept.sum() == 0


def test_small_gradients_start_from_zeros_and_all_of_a_full_slot():
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
