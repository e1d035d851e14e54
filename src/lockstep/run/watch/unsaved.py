"""What a script holds and no state of the run does, and whether it has changed since some place.

Three kinds of things, found by walking the script's variables: objects with a `state_dict` (an average that nobody tracks,
a second model), plain attributes of objects of the script's own classes (a trainer's best value, a meter's sum), and
containers and generators. What stays as it was is made again by the script itself when it runs again up to that place.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lockstep.run.watch.holdings import MAX_DEPTH, MAX_MEMBERS, Holdings, is_of_the_users_class, script_frames
from lockstep.run.watch.variables import text_of

Look = Callable[[Any], list[Any]]
_KEPT = (list, dict, set, deque, np.ndarray, Tensor, torch.Generator, np.random.Generator, random.Random)


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
        self._kept = {id(thing): (thing, self._told(thing)) for _, thing in self._containers()}
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
        for name, thing in self._containers():
            if id(thing) in self._kept and self._told(thing) != self._kept[id(thing)][1]:
                return name
        now = dict(self._all_attributes())
        return next((name for name, text in self._attributes.items() if now.get(name, text) != text), "")

    def _found(self) -> Iterator[tuple[str, Any]]:
        return Holdings().before_step(self._models, self._known)

    def _look(self, thing: Any) -> list[Any]:
        try:
            return self._versions_of(thing)
        except Exception:  # noqa: BLE001 - a state_dict of the script's own may raise anything
            return [object()]  # like nothing else: it counts as changed

    def _told(self, thing: Any) -> Any:
        return self._look(thing) if isinstance(thing, Tensor) else text_of(thing)

    def _containers(self) -> Iterator[tuple[str, Any]]:
        for frame in script_frames():
            for variables in (frame.f_locals, frame.f_globals):
                for name, thing in list(variables.items()):
                    if not name.startswith("_") and isinstance(thing, _KEPT) and not isinstance(thing, nn.Parameter):
                        yield name, thing

    def _all_attributes(self) -> Iterator[tuple[str, str]]:
        seen = {id(module) for model in self._models for module in model.modules()} | {id(one) for one in self._known}
        for frame in script_frames():
            for variables in (frame.f_locals, frame.f_globals):
                for name, thing in list(variables.items()):
                    if not name.startswith("_"):
                        yield from _attributes(name, thing, seen, MAX_DEPTH)


def _attributes(name: str, thing: Any, seen: set[int], depth: int) -> Iterator[tuple[str, str]]:
    """Plain attributes of objects of the script's classes, by their path; `seen` are left out."""
    if id(thing) in seen or isinstance(thing, (type, ModuleType, Tensor, str, int, float)):
        return
    seen.add(id(thing))
    if isinstance(thing, (list, tuple, dict)):
        members = list(thing.items()) if isinstance(thing, dict) else list(enumerate(thing))
        for key, value in members if depth and len(members) <= MAX_MEMBERS else ():
            yield from _attributes(f"{name}[{key!r}]", value, seen, depth - 1)
    elif is_of_the_users_class(thing):
        for key, value in list(getattr(thing, "__dict__", {}).items()):
            if text := text_of(value):
                yield f"{name}.{key}", text
            if depth:
                yield from _attributes(f"{name}.{key}", value, seen, depth - 1)
