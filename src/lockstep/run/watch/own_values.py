"""Values that a script keeps in places of its own: attributes of its objects and classes, `nonlocal` and `global` names.

Found by walking the script's variables while it runs, so it does not matter which function changes them. Objects are
compared by identity: these are looks into one process.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor, nn

from lockstep.run.watch.holdings import (
    MAX_DEPTH,
    MAX_MEMBERS,
    is_of_the_users_class,
    is_the_users,
    parts_of,
    script_variables,
)
from lockstep.run.watch.marks import Marks

Key = tuple[int, str]


class OwnValues:
    """What is there now. The walk begins at the frames of the script above the caller.

    Args:
        models: the prepared ones; they and `known` are part of every state.
        known: the other objects that are.
    """

    def __init__(self, models: Sequence[nn.Module], known: Sequence[Any]) -> None:
        self._seen = parts_of(models, known)
        self._marks = Marks()
        self._found: dict[Key, tuple[str, Hashable]] = {}
        self._owners: list[Any] = []  # they must live, or others could get their identities
        for name, thing in script_variables():
            self._walk(name, thing, MAX_DEPTH)

    def changed_since(self, earlier: OwnValues) -> dict[Key, str]:
        """The names of what was there earlier and is another one now."""
        return {
            key: name
            for key, (name, mark) in self._found.items()
            if key in earlier._found and earlier._found[key][1] != mark
        }

    def _walk(self, path: str, thing: Any, depth: int) -> None:
        if id(thing) in self._seen or isinstance(thing, (ModuleType, Tensor, str, bytes, int, float, type(None))):
            return
        self._seen.add(id(thing))
        if isinstance(thing, (list, tuple, dict)):
            members = list(thing.items()) if isinstance(thing, dict) else list(enumerate(thing))
            for key, value in members if depth and len(members) <= MAX_MEMBERS else ():
                self._walk(f"{path}[{key!r}]", value, depth - 1)
        elif isinstance(thing, FunctionType):
            if _is_own(thing):
                self._keep(path, thing, list(_assigned_outside(thing)), depth)
        elif isinstance(thing, type):
            if _is_own(thing):
                members = [(key, value) for key, value in vars(thing).items() if not key.startswith("__")]
                self._keep(path, thing, members, depth)
        elif is_of_the_users_class(thing):
            self._keep(path, thing, list(getattr(thing, "__dict__", {}).items()), depth)
            self._walk(type(thing).__name__, type(thing), depth)

    def _keep(self, path: str, owner: Any, members: Sequence[tuple[str, Any]], depth: int) -> None:
        self._owners.append(owner)
        for key, value in members:
            if (mark := self._marks.of(value)) is not None:
                self._found[id(owner), key] = f"{path}.{key}", mark
            if depth:
                self._walk(f"{path}.{key}", value, depth - 1)


@dataclass
class OwnChanges:
    """What a script keeps by itself, at the places from which the present body of `run.epochs` can run again."""

    first: OwnValues | None = None
    """Before all epochs."""
    body: OwnValues | None = None
    """Where the present body began."""
    steps: OwnValues | None = None
    """Where its steps began."""

    def enter_body(self, now: OwnValues) -> None:
        """A body of `run.epochs` begins."""
        self.first, self.body, self.steps = self.first or now, now, None

    def enter_steps(self, now: OwnValues) -> None:
        """Its steps begin."""
        self.first, self.steps = self.first or now, now

    def leave(self) -> None:
        """The loop over epochs is over."""
        self.body = self.steps = None

    def changed(self, now: OwnValues) -> str:
        """A value that somebody who has not been in the steps would not have; empty where there is none."""
        changed = now.changed_since(self.first) if self.first is not None else {}
        if self.steps is not None:
            made_anew = self.steps.changed_since(self.body) if self.body is not None else {}
            changed = {key: name for key, name in changed.items() if key not in made_anew}
            changed |= now.changed_since(self.steps)
        return next(iter(changed.values()), "")


def _is_own(thing: FunctionType | type) -> bool:
    """Whether the script, or a module beside it, defines the function or class."""
    file = getattr(sys.modules.get(thing.__module__), "__file__", None)
    return thing.__module__ == "__main__" or (file is not None and is_the_users(file))


def _assigned_outside(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The `nonlocal` and `global` names that a function assigns, with their values."""
    code = function.__code__
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=False))
    for name in sorted({str(one.argval) for one in dis.get_instructions(code) if one.opname == "STORE_GLOBAL"}):
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for name in sorted({str(one.argval) for one in dis.get_instructions(code) if one.opname == "STORE_DEREF"}):
        if name in cells:
            try:
                yield name, cells[name].cell_contents
            except ValueError:  # it is empty
                continue
