"""A pool of slots for each pattern of frozen parameters: a GAN freezes and unfreezes the same ones again and again."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from lockstep.strategy.gradients import SlotPool
from lockstep.transport.contract import Transport

KEPT_POOLS = 4
"""Each has the memory of at least one gradient, so those of patterns that were not used lately go."""


class SlotPools:
    """The pools of one list of parameters.

    Args:
        transport: see `SlotPool`. Every rank must call the methods, in the same order.
        num_shared: see `SlotPool`.
    """

    def __init__(self, transport: Transport, num_shared: int) -> None:
        self._transport, self._num_shared = transport, num_shared
        self._pools: dict[tuple[bool, ...], SlotPool] = {}
        """The one used last is the last one."""

    def of(self, parameters: Sequence[nn.Parameter]) -> SlotPool:
        """The pool for those of `parameters`, always the same list, that are trainable now."""
        pattern = tuple(parameter.requires_grad for parameter in parameters)
        pool = self._pools.pop(pattern, None)
        if pool is None:
            trainable = [parameter for parameter in parameters if parameter.requires_grad]
            pool = SlotPool(trainable, self._transport, self._num_shared)
        self._pools[pattern] = pool
        if len(self._pools) > KEPT_POOLS:
            self._pools.pop(next(iter(self._pools))).close()
        return pool

    def close(self) -> None:
        """Nothing is reduced from these slots any more."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
