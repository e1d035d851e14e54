"""Batches in page-locked memory, the only memory from which a GPU copies while it computes.

torch's own pinning refuses a batch of which something is on a device already, or sparse; here that stays as it is. A
batch of this process is locked just before it is copied, one from a loader worker in torch's pinning thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lockstep.rank.data.move import mapped


def pinned(batch: Any) -> Any:
    """Return `batch` with every dense tensor of the CPU in page-locked memory; containers keep their types.

    Objects with a `pin_memory()` method of their own are asked, and stay as they are where they cannot.
    """
    return mapped(batch, "pin_memory", _locked)


def _locked(value: Any) -> Any:
    if isinstance(value, Tensor):
        can_be = value.device.type == "cpu" and value.layout is torch.strided
        return value.pin_memory() if can_be else value
    try:
        return value.pin_memory()
    except RuntimeError:  # it holds a tensor of a device
        return value


class Pinnable:
    """A batch on its way from a worker, which torch's pinning thread asks to lock itself."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def pin_memory(self) -> Pinnable:
        """Lock what can be locked."""
        return Pinnable(pinned(self.batch))


class CollatePinnable:
    """A `collate_fn` for workers.

    Args:
        collate_fn: makes the batch.
    """

    def __init__(self, collate_fn: Callable[[Any], Any]) -> None:
        self._collate_fn = collate_fn

    def __call__(self, samples: Any) -> Pinnable:
        return Pinnable(self._collate_fn(samples))
