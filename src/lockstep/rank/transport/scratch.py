"""Reused receive buffers: fresh memory costs a page fault every 4 KiB."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


class Scratch:
    """Buffers that are not in use."""

    def __init__(self) -> None:
        self._idle: dict[tuple[int, torch.dtype], list[Tensor]] = {}

    def take(self, like: Tensor, size: int) -> Tensor:
        """A 1-D buffer of `size` elements; what is in it is anybody's guess."""
        idle = self._idle.get((size, like.dtype))
        return idle.pop() if idle else like.new_empty(size)

    def give_back(self, tensors: Iterable[Tensor]) -> None:
        """Let the next one have them."""
        for tensor in tensors:
            self._idle.setdefault((tensor.numel(), tensor.dtype), []).append(tensor)
