"""Whether a buffer counts, as its change in a lane tells.

Lanes that all count the same leave the same value, which is one lane's share of the samples, but all there is of steps.
Values that a layer computes from its weights (spectral norm, caches, temperatures) change otherwise.
"""

from __future__ import annotations

import torch
from torch import Tensor


def counts(start: Tensor, value: Tensor, before: Tensor | None) -> bool:
    """Whether a change looks like a counter's: in one direction, by whole numbers or by the same amounts as before.

    From 0 to 1 it may be a switch.

    Args:
        start: real numbers, before the lane; on the CPU.
        value: after it; same shape and dtype.
        before: `value - start` of the pass before, float64, if they differed.
    """
    moved = value != start
    if not bool(moved.any()):
        return False
    old, new = start[moved].double(), value[moved].double()
    change = new - old
    if not bool((change > 0).all() or (change < 0).all()):
        return False
    if torch.equal(change, change.round()) and torch.equal(old, old.round()):
        return not bool(((old == 0) & (new == 1)).all())
    if before is None or not torch.equal(before != 0, moved):
        return False
    rounding = 4 * torch.finfo(value.dtype).eps * new.abs()
    return bool(((change - before[moved]).abs() <= rounding).all() and (change.abs() > 100 * rounding).all())
