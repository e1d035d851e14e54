"""What changes with the values of plain things: how two looks at the same thing are compared. No walk, no names."""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch
from torch import Tensor

GENERATORS: dict[type, Callable[[Any], Hashable]] = {
    torch.Generator: lambda value: value.get_state().numpy().tobytes(),
    np.random.Generator: lambda value: repr(value.bit_generator.state),
    np.random.RandomState: lambda value: repr(value.get_state()),
    random.Random: lambda value: value.getstate(),
}
MOST_ITEMS = 20_000
"""How many items are looked at, in all containers together; of the others the length tells."""
ELEMENTS_OF_AN_ITEM = 64
"""So many elements of an array count as one item; tensors have a counter that tells of every write."""


class Marks:
    """What changes with the values of plain things, with a bound on how many are looked at."""

    def __init__(self) -> None:
        self._left = MOST_ITEMS

    def of(self, value: Any) -> Hashable:
        """Equal for equal values; None for what is not plain."""
        self._left -= 1
        if value is None or isinstance(value, (bool, int, float, str)):
            return type(value).__name__, repr(value)
        if isinstance(value, (list, tuple, deque, dict, set, frozenset)):
            return self._container(value)
        if isinstance(value, Tensor):
            return value.data_ptr(), 0 if value.is_inference() else value._version  # noqa: SLF001 - torch's own name
        if isinstance(value, np.ndarray):
            return self._array(value)
        state_of = next((state_of for kind, state_of in GENERATORS.items() if isinstance(value, kind)), None)
        return None if state_of is None else state_of(value)

    def _container(self, value: Any) -> Hashable:
        items = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
        if len(items) > self._left:
            return len(value)
        marks = [self.of(item) for item in items]
        return len(value), frozenset(marks) if isinstance(value, (set, frozenset)) else tuple(marks)

    def _array(self, value: np.ndarray[Any, Any]) -> Hashable:
        shape, items = tuple(map(int, value.shape)), value.size // ELEMENTS_OF_AN_ITEM
        if items > self._left or value.dtype == object:
            return shape
        self._left -= items
        return shape, hashlib.blake2b(value.tobytes(), digest_size=16).digest()
