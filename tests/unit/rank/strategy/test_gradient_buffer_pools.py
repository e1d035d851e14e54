"""Pools of slots by pattern of frozen parameters."""

import torch
from torch import nn

from lockstep.rank.strategy.replica.gradient_buffers import KEPT_POOLS, GradientBufferPools
from lockstep.rank.transport.alone import AloneTransport


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
    parameters = [nn.Parameter(torch.zeros(3)) for _ in range(KEPT_POOLS)]
    pools = GradientBufferPools(Counting(), 1)
    found = []
    for frozen in range(KEPT_POOLS):
        freeze(parameters, frozen)
        found.append(pools.of(parameters))
    assert [len(pool.parameters) for pool in found] == [KEPT_POOLS - 1] * KEPT_POOLS
    for frozen in range(KEPT_POOLS):
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
        assert transport.held == min(frozen + 1, KEPT_POOLS)
    freeze(parameters, 0)
    assert pools.of(parameters) is first
    pools.close()
    assert transport.held == 0
