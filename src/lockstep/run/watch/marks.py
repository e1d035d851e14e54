"""What changes with the values of plain things: how two looks at the same thing are compared. No walk, no names."""

from __future__ import annotations

import itertools
import random
import weakref
import zlib
from collections import deque
from collections.abc import Callable, Container, Hashable
from types import GeneratorType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lockstep.strategy.bit_sums import bit_sums

GENERATORS: dict[type, Callable[[Any], Hashable]] = {
    torch.Generator: lambda value: value.get_state().numpy().tobytes(),
    np.random.Generator: lambda value: repr(value.bit_generator.state),
    np.random.RandomState: lambda value: repr(value.get_state()),
    random.Random: lambda value: value.getstate(),
}
_EMPTY: tuple[Any, ...] = (
    [],
    (),
    {},
    {}.values(),
    {}.items(),
    set(),
    "",
    b"",
    bytearray(),
    deque(),
    range(1),
    range(1 << 70),
)
ITERATORS: tuple[type, ...] = (
    *(type(iter(one)) for one in _EMPTY),
    *(type(one) for one in (reversed([]), iter(int, 0))),
    *(enumerate, zip, map, filter, itertools.count, itertools.cycle, itertools.chain, itertools.islice),
    *(itertools.repeat, itertools.accumulate, itertools.starmap, itertools.takewhile, itertools.dropwhile),
)
"""Python's own: each has a place that moves."""
CONTAINERS = (list, tuple, deque, dict, set, frozenset)
MOST_ITEMS = 20_000
"""How many items are looked at, in all containers together; of the others the length tells."""
MOST_ELEMENTS = 1 << 26
"""How many elements of arrays and tensors are; of other tensors a counter of writes tells. 30 ms."""
MAX_DEPTH = 20
"""How deep containers are looked into: they may hold themselves."""


def address(tensor: Tensor) -> int:
    """Where the memory begins of which a dense tensor is a view."""
    return tensor.data_ptr() - int(tensor.storage_offset()) * tensor.element_size() if tensor.numel() else -1


class Same:
    """Which object something is, without keeping it alive where that can be avoided."""

    __slots__ = ("_of",)

    def __init__(self, thing: Any) -> None:
        try:
            self._of: Callable[[], Any] = weakref.ref(thing)
        except TypeError:
            self._of = lambda: thing

    def __eq__(self, other: object) -> bool:
        mine = self._of()
        return mine is not None and isinstance(other, Same) and mine is other._of()

    def __hash__(self) -> int:
        return 0


class Marks:
    """What changes with the values of plain things, with a bound on how many are looked at.

    Args:
        held: `address` of tensors that count as unchanged whatever is written to them: every state holds them.
    """

    def __init__(self, held: Container[int] = ()) -> None:
        self._items, self._elements, self._held = MOST_ITEMS, MOST_ELEMENTS, held
        self._ways: list[tuple[Any, Callable[[Any, int], Hashable]]] = [
            (CONTAINERS, self._container),
            (Tensor, self._tensor),
            (np.ndarray, self._array),
            (ITERATORS, self._iterator),
            (GeneratorType, self._generator),
            *((kind, lambda value, _, of=state_of: of(value)) for kind, state_of in GENERATORS.items()),
        ]

    def of(self, value: Any, depth: int = MAX_DEPTH) -> Hashable:
        """Equal for equal values; None for what is not plain."""
        self._items -= 1
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes, bytearray, range, slice)):
            return type(value).__name__, repr(value)
        return next((way(value, depth) for kinds, way in self._ways if isinstance(value, kinds)), None)

    def _container(self, value: Any, depth: int) -> Hashable:
        items = [*value.keys(), *value.values()] if isinstance(value, dict) else list(value)
        if len(items) > self._items or not depth:
            return len(value)
        marks = [Same(item) if (mark := self.of(item, depth - 1)) is None else mark for item in items]
        return len(value), frozenset(marks) if isinstance(value, (set, frozenset)) else tuple(marks)

    def _iterator(self, value: Any, depth: int) -> Hashable:
        """Where it is; none of this moves it."""
        try:
            made_of = value.__reduce__()[1:]
        except (TypeError, AttributeError, DeprecationWarning):  # from Python 3.14 on those of itertools have none
            told = repr(value)
            return object() if " at 0x" in told else told
        return self._container(tuple(made_of), depth)

    def _generator(self, value: GeneratorType[Any, Any, Any], depth: int) -> Hashable:
        frame = value.gi_frame
        if frame is None or not depth:
            return "over"
        if value.gi_running or str(frame.f_globals.get("__name__")).startswith("lockstep."):
            return None  # its variables are those of a frame of the script, or our own
        return frame.f_lasti, self._container(dict(frame.f_locals), depth - 1)

    def _tensor(self, value: Tensor, _: int) -> Hashable:
        """What is in it: `value.data` is written to past the counter of writes."""
        if value.is_meta or (value.layout is torch.strided and address(value) in self._held):
            return tuple(value.shape)
        if value.layout is torch.strided and value.device.type == "cpu" and value.numel() <= self._elements:
            try:
                [found] = bit_sums([value.detach().contiguous()])
            except (RuntimeError, TypeError, KeyError):  # one of a transform, or a dtype that has no bits
                return Same(value)
            self._elements -= value.numel()
            return tuple(value.shape), value.dtype, found
        return Same(value), value.data_ptr(), 0 if value.is_inference() else value._version  # noqa: SLF001 - torch's own name

    def _array(self, value: np.ndarray[Any, Any], depth: int) -> Hashable:
        shape = tuple(map(int, value.shape))
        if value.dtype.hasobject:
            return shape, self._container(value.reshape(-1).tolist(), depth - 1)
        if isinstance(value, np.memmap) or value.size > self._elements:
            return shape
        self._elements -= value.size
        return shape, str(value.dtype), zlib.crc32(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
