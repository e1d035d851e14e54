"""What a training script holds besides what it prepared: model averages, schedulers, scalers, copies of weights.

Found by walking the variables of the script's frames, at the end of a step: everything with a `state_dict`, and
dictionaries or lists of tensors that look like a model's weights. What the script made inside a step's lanes belongs to
one lane and differs between ranks by nature; it is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import FrameType, GeneratorType, ModuleType
from typing import Any

from torch import Tensor, nn

from samebits.rank.checks.held import parts_of
from samebits.rank.look.frames import is_a_class_of_the_users, script_frames

MAX_DEPTH = 3
"""How deep objects of the script's own classes, lists and dictionaries are looked into."""
MAX_MEMBERS = 64
"""Longer lists and dictionaries hold data, not objects with a state."""
_MODULE_TABLES = ("_modules", "_parameters", "_buffers")


class ScriptObjects:
    """Remembers from step to step which objects existed before a step's lanes, and where the script's variables are."""

    def __init__(self) -> None:
        self._kept: dict[int, Any] = {}
        self._of_lanes: set[int] = set()
        self._before: dict[int, Any] = {}
        self._left: dict[int, Any] = {}
        """What the last step's lanes left in variables."""
        self._outside: list[tuple[str, Any]] = []
        self._frames: list[FrameType] = []

    def before_lanes(self, models: Sequence[nn.Module]) -> None:
        """Note what the script holds before any lane begins: it belongs to none."""
        self._before = {id(thing): thing for _, thing in _found(models, list(script_frames()))}

    def before_step(self, models: Sequence[nn.Module], known: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        """Name and object of everything that the script holds between two steps, except `known`."""
        found = list(_found(models, list(script_frames())))
        self._kept = {id(thing): thing for _, thing in found}
        yield from _named(found, models, known)

    def after_lanes(self, models: Sequence[nn.Module]) -> None:
        """Note what is new after the lanes of a pass: it belongs to them (at the first step, nothing is known yet)."""
        found = _found(models, list(script_frames()))
        self._of_lanes |= {id(thing) for _, thing in found if id(thing) not in self._kept}

    def after_step(self, models: Sequence[nn.Module], known: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        """Name and object of everything that the script holds, except `known` and what its lanes left behind."""
        frames = list(script_frames())
        self._frames = [frame for frame in frames if not _holds_a_loop(frame)]
        found = list(_found(models, frames))
        self._kept = {id(thing): thing for _, thing in found}
        of_lanes, self._of_lanes = self._of_lanes, set()
        self._left = {id(thing): thing for _, thing in found if id(thing) in of_lanes - self._before.keys()}
        self._outside = [(name, thing) for name, thing in found if id(thing) not in of_lanes]
        yield from _named(self._outside, models, known)

    def at_end(self, models: Sequence[nn.Module], known: Sequence[Any]) -> Iterator[tuple[str, Any]]:
        """The same when the script is over: what its functions held on return, and what it held after the last step."""
        found = list(_found(models, [*script_frames(), *self._frames]))
        found = [(name, thing) for name, thing in found if id(thing) not in self._left]
        seen = {id(thing) for _, thing in found}
        yield from _named([*found, *(one for one in self._outside if id(one[1]) not in seen)], models, known)


def _named(
    found: Sequence[tuple[str, Any]], models: Sequence[nn.Module], known: Sequence[Any]
) -> Iterator[tuple[str, Any]]:
    """What is neither `known` nor a part of a prepared model, each with a name of its own."""
    skipped = {id(one) for one in parts_of(models, known)}
    names: dict[str, int] = {}
    for name, thing in found:
        if id(thing) not in skipped:
            names[name] = names.get(name, 0) + 1
            yield (name if names[name] == 1 else f"{name} ({names[name]})"), thing


def _found(models: Sequence[nn.Module], frames: Sequence[FrameType]) -> Iterator[tuple[str, Any]]:
    weights = _Weights(models)
    seen: set[int] = set()
    for frame in frames:
        for variables in (frame.f_locals, frame.f_globals):
            for name, thing in list(variables.items()):
                if not name.startswith("__"):
                    yield from _walk(name, thing, weights, seen, MAX_DEPTH)


def _holds_a_loop(frame: FrameType) -> bool:
    """Whether a variable is a loop under way, which must end when its function returns, as without a recorder."""
    return any(isinstance(value, GeneratorType) for value in frame.f_locals.values())


class _Weights:
    """Recognises collections of tensors that mirror a prepared model."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._names = {name for model in models for name, _ in [*model.named_parameters(), *model.named_buffers()]}
        self._shapes = [[parameter.shape for parameter in model.parameters()] for model in models]

    def mirror(self, thing: Any) -> bool:
        """Whether it is a dictionary by the model's names, or a list with the shapes of all its parameters."""
        if isinstance(thing, dict):
            return bool(thing) and thing.keys() <= self._names and all(isinstance(v, Tensor) for v in thing.values())
        if isinstance(thing, list) and thing and all(isinstance(value, Tensor) for value in thing):
            return [value.shape for value in thing] in self._shapes
        return False


def _walk(name: str, thing: Any, weights: _Weights, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    if id(thing) in seen or isinstance(thing, (type, ModuleType, Tensor, str, int, float)):
        return
    seen.add(id(thing))
    if weights.mirror(thing) or has_state(thing):
        yield name, thing
    if depth > 0:
        for label, member in _members(name, thing):
            yield from _walk(label, member, weights, seen, depth - 1)


def has_state(thing: Any) -> bool:
    """Whether it is an object that returns its state, and not one of ours."""
    return not type(thing).__module__.startswith("samebits.") and callable(getattr(type(thing), "state_dict", None))


def _members(name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, dict):
        if len(thing) <= MAX_MEMBERS:
            yield from ((f"{name}[{key!r}]", value) for key, value in list(thing.items()))
    elif isinstance(thing, (list, tuple)):
        if len(thing) <= MAX_MEMBERS:
            yield from ((f"{name}[{number}]", value) for number, value in enumerate(thing))
    elif is_a_class_of_the_users(type(thing)):
        attributes = list(getattr(thing, "__dict__", {}).items())
        yield from ((f"{name}.{key}", value) for key, value in attributes if key not in _MODULE_TABLES)
