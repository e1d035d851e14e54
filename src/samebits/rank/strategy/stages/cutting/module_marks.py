"""What a call of a model changes in its Python state: attributes, their contents, class attributes, globals, closures.

A mark is compared with a later one of the same place. Parameters and buffers are watched elsewhere.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

MAX_DEPTH = 6
MAX_MEMBERS = 1000
"""Of a longer container, only the length and the last members count."""
_OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"} | {"forward", "_call_impl"}
_FOREIGN = ("torch", "numpy", *sys.stdlib_module_names)


class StatePlace(NamedTuple):
    """Where state is: an attribute of module `owner`, or (None) of a class, or a function's variable."""

    owner: str | None
    name: str

    def __str__(self) -> str:
        return ".".join(filter(None, (self.owner, self.name)))


Marks = dict[StatePlace, Any]


def marks_of(model: nn.Module, only: Iterable[StatePlace] | None = None) -> Marks:
    """Make a mark for each place of the model's state, or for `only` these places."""
    marker, wanted = _Marker(), None if only is None else set(only)
    return {place: marker.mark(value) for place, value in _places(model) if wanted is None or place in wanted}


def changed(before: Marks, after: Marks) -> list[StatePlace]:
    """The places where two marks differ, or one is missing."""
    missing = object()
    return [place for place in {**before, **after} if before.get(place, missing) != after.get(place, missing)]


def _places(model: nn.Module) -> Iterator[tuple[StatePlace, Any]]:
    kinds: dict[type, None] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in _OF_EVERY_MODULE:
                yield StatePlace(path, name), value
        kinds |= dict.fromkeys(one for one in type(module).__mro__ if not _is_foreign(one))
    for kind in kinds:
        for name, value in vars(kind).items():
            if isinstance(value, FunctionType):
                yield from _variables(value)
            elif not name.startswith("__"):
                yield StatePlace(None, f"{kind.__name__}.{name}"), value


def _variables(function: FunctionType) -> Iterator[tuple[StatePlace, Any]]:
    """The globals and the variables of outer functions that a function names."""
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield StatePlace(None, f"{function.__module__}.{name}"), function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield StatePlace(None, f"{function.__qualname__}.{name}"), cell.cell_contents
        except ValueError:
            # The variable has no value yet.
            continue


def _is_foreign(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _FOREIGN


class _Same:
    """A value that equals only the same object; keeps it alive, so no identity is reused."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._value is self._value

    __hash__ = None  # type: ignore[assignment]


class _Marker:
    def __init__(self) -> None:
        self._known: dict[int, Any] = {}

    def mark(self, value: Any, depth: int = MAX_DEPTH) -> Any:
        """Make a mark that equals a later one of the same value if nothing in it has changed."""
        if value is None or isinstance(value, (bool, int, str, bytes)):
            return type(value), value
        if isinstance(value, float):
            return value.hex()
        # Each object is looked at once, though many places lead to it.
        if id(value) not in self._known:
            # A container may hold itself.
            self._known[id(value)] = _Same(value)
            self._known[id(value)] = self._inside(value, depth - 1)
        return self._known[id(value)]

    def _inside(self, value: Any, depth: int) -> Any:
        for kind, mark in _OF_KINDS.items():
            if isinstance(value, kind):
                return mark(value)
        if isinstance(value, (nn.Module, type, FunctionType, ModuleType)) or depth < 0:
            return _Same(value)
        if isinstance(value, Mapping):
            return (
                _Same(value),
                len(value),
                [(self.mark(k, depth), self.mark(v, depth)) for k, v in _last(value.items())],
            )
        if isinstance(value, (list, tuple, set, frozenset, deque)):
            return _Same(value), len(value), [self.mark(member, depth) for member in _last(value)]
        if hasattr(value, "__dict__") and not _is_foreign(type(value)):
            return _Same(value), [(name, self.mark(one, depth)) for name, one in vars(value).items()]
        return _Same(value)


_OF_KINDS: dict[Any, Callable[[Any], Any]] = {
    Tensor: lambda tensor: (_Same(tensor), -1 if tensor.is_inference() else tensor._version),  # noqa: SLF001
    np.ndarray: lambda array: (_Same(array), hash(array.tobytes())),
    torch.Generator: lambda generator: hash(generator.get_state().numpy().tobytes()),
    random.Random: lambda generator: hash(generator.getstate()),
    np.random.Generator: lambda generator: repr(generator.bit_generator.state),
    # An iterator's position cannot be seen, so two marks of one are never equal.
    Iterator: lambda _: object(),
}
"""Marks of values that are no containers."""


def _last(members: Any) -> list[Any]:
    listed = list(members)
    return listed if len(listed) <= MAX_MEMBERS else listed[-10:]
