"""What a script holds and no state of the run does, and whether it has changed since some place.

Three kinds of things, found by walking the script's variables: objects with a `state_dict` (an average that nobody tracks,
a second model), plain attributes of objects of the script's own classes (a trainer's best value, a meter's sum), and
containers and generators. What stays as it was is made again by the script itself when it runs again up to that place.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lockstep.run.watch.holdings import MAX_DEPTH, MAX_MEMBERS, Holdings, is_of_the_users_class, script_frames

Look = Callable[[Any], list[Any]]
_GENERATORS: dict[type, Callable[[Any], Hashable]] = {
    torch.Generator: lambda value: value.get_state().numpy().tobytes(),
    np.random.Generator: lambda value: repr(value.bit_generator.state),
    np.random.RandomState: lambda value: repr(value.get_state()),
    random.Random: lambda value: value.getstate(),
}
_CONTAINERS = (list, dict, set, deque, np.ndarray, Tensor, *_GENERATORS)
MOST_ITEMS = 20_000
"""How many items are looked at, in all containers together; of the others the length tells."""
ELEMENTS_OF_AN_ITEM = 64
"""So many elements of an array count as one item; tensors have a counter that tells of every write."""


class Unsaved:
    """What the script holds now. The walk begins at the frames of the script above the caller.

    Args:
        models: the prepared ones.
        known: objects that every state holds.
        versions_of: what changes with every write to an object with a state.
    """

    def __init__(self, models: Sequence[nn.Module], known: Sequence[Any], versions_of: Look) -> None:
        self._models, self._known, self._versions_of = models, known, versions_of
        self._stateful = {id(thing): (thing, self._look(thing)) for _, thing in self._found()}
        marks = Marks()
        self._kept = {id(thing): (thing, marks.of(thing)) for _, thing in _containers()}
        self._attributes = dict(self._all_attributes())

    def new(self) -> str:
        """The name of an object with a state that was not there; empty where there is none."""
        return next(
            (name for name, thing in self._found() if id(thing) not in self._stateful and self._look(thing)), ""
        )

    def changed(self) -> str:
        """The name of something that was there and has changed since; empty where there is none."""
        for name, thing in self._found():
            if id(thing) in self._stateful and self._look(thing) != self._stateful[id(thing)][1]:
                return name
        marks = Marks()
        for name, thing in _containers():
            if id(thing) in self._kept and marks.of(thing) != self._kept[id(thing)][1]:
                return name
        now = dict(self._all_attributes())
        return next((name for name, mark in self._attributes.items() if now.get(name, mark) != mark), "")

    def _found(self) -> Iterator[tuple[str, Any]]:
        return Holdings().before_step(self._models, self._known)

    def _look(self, thing: Any) -> list[Any]:
        try:
            return self._versions_of(thing)
        except Exception:  # noqa: BLE001 - a state_dict of the script's own may raise anything
            return [object()]  # like nothing else: it counts as changed

    def _all_attributes(self) -> Iterator[tuple[str, Hashable]]:
        seen = {id(module) for model in self._models for module in model.modules()} | {id(one) for one in self._known}
        marks = Marks()
        for name, thing in _variables():
            yield from _attributes(name, thing, seen, marks, MAX_DEPTH)


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
        state_of = next((state_of for kind, state_of in _GENERATORS.items() if isinstance(value, kind)), None)
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


def _variables() -> Iterator[tuple[str, Any]]:
    for frame in script_frames():
        for variables in (frame.f_locals, frame.f_globals):
            yield from ((name, thing) for name, thing in list(variables.items()) if not name.startswith("_"))


def _containers() -> Iterator[tuple[str, Any]]:
    return (
        (name, thing)
        for name, thing in _variables()
        if isinstance(thing, _CONTAINERS) and not isinstance(thing, nn.Parameter)
    )


def _attributes(name: str, thing: Any, seen: set[int], marks: Marks, depth: int) -> Iterator[tuple[str, Hashable]]:
    """Plain attributes of objects of the script's classes, by their path; `seen` are left out."""
    if id(thing) in seen or isinstance(thing, (type, ModuleType, Tensor, str, int, float)):
        return
    seen.add(id(thing))
    if isinstance(thing, (list, tuple, dict)):
        members = list(thing.items()) if isinstance(thing, dict) else list(enumerate(thing))
        for key, value in members if depth and len(members) <= MAX_MEMBERS else ():
            yield from _attributes(f"{name}[{key!r}]", value, seen, marks, depth - 1)
    elif is_of_the_users_class(thing):
        for key, value in list(getattr(thing, "__dict__", {}).items()):
            if (mark := marks.of(value)) is not None:
                yield f"{name}.{key}", mark
            if depth:
                yield from _attributes(f"{name}.{key}", value, seen, marks, depth - 1)
