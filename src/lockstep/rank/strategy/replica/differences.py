"""Which bits of flat tensors differ."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.rank.strategy.bit_sums import INTEGERS
from lockstep.rank.strategy.replica.arena import Segment

Flags = np.ndarray[Any, Any]


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Whether none differs. On a GPU, this waits for it."""
    return torch.equal(left.view(torch.uint8), right.view(torch.uint8))


def differs(left: Tensor, right: Tensor) -> Tensor:
    """For each element of two 1-D tensors whether it differs, on their device; for a complex one twice."""
    return _bits(left) != _bits(right)


def _bits(flat: Tensor) -> Tensor:
    real = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    return real.view(INTEGERS[real.element_size()])


def any_in(flags: Flags, flat: Tensor, segments: Sequence[Segment]) -> list[bool]:
    """For each segment of `flat`, in order, whether one of its `differs` is set. Between segments none is."""
    factor = flags.size // flat.numel()
    found: list[bool] = np.logical_or.reduceat(flags, [factor * segment.offset for segment in segments]).tolist()
    return found


def on_host(rows: Sequence[Tensor]) -> list[Flags]:
    """1-D tensors of one dtype and device as arrays, with one wait for it."""
    if not rows:
        return []
    whole = torch.cat([*rows]).cpu().numpy()
    return np.split(whole, np.cumsum([row.numel() for row in rows])[:-1])
