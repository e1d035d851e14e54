"""Values that a script keeps in places of its own: objects, classes, functions, containers, models, other modules.

Found by walking what the script's variables lead to while it runs, so it does not matter which function changes them.
Variables that the loops themselves assign are `carried`'s. Objects are compared by identity: these are looks into one
process.
"""

from __future__ import annotations

import argparse
import dis
import functools
import queue
import sys
from collections import UserDict, UserList
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import BuiltinMethodType, CodeType, FunctionType, GeneratorType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lockstep.run.watch.carried import accumulated_names
from lockstep.run.watch.holdings import (
    MAX_MEMBERS,
    Holdings,
    has_state,
    is_of_the_users_class,
    is_the_users,
    modules_of_the_script,
    parts_of,
    script_variables,
)
from lockstep.run.watch.marks import CONTAINERS, GENERATORS, ITERATORS, Marks, Same, address
from lockstep.run.watch.module_attributes import plain_attributes

Key = tuple[int, str]
MAX_DEPTH = 5
"""How deep things are looked into that are held by others."""
STATE = " state"
"""The key of what an object's `state_dict` returns; no attribute is called that."""
NOTHING = Marks().of({})
_ATOMS = (str, bytes, int, float, complex, type(None))
_KEPT = (*CONTAINERS, bytearray, np.ndarray, Tensor, GeneratorType, *ITERATORS, *GENERATORS)
"""What has a value of its own that may change."""
_OPEN = (argparse.Namespace, SimpleNamespace, UserDict, UserList, queue.Queue)
"""Library classes whose attributes are the script's values."""


class OwnValues:
    """What is there now. The walk begins at the frames of the script above the caller.

    Args:
        models: the prepared ones; what every state holds of them and of `known` is left out.
        known: the other objects that every state holds.
    """

    def __init__(self, models: Sequence[nn.Module], known: Sequence[Any]) -> None:
        held = parts_of(models, known)
        self._seen = {id(one) for one in held}
        self._marks = Marks({address(one) for one in held if isinstance(one, Tensor) and not one.is_meta})
        self._found: dict[Key, tuple[str, Hashable]] = {}
        self._things: dict[Key, Same] = {}
        """Which objects they are, where they are not numbers, texts and the like."""
        self._owners: dict[int, Same] = {}
        for name, thing in Holdings().before_step(models, known):
            self._note_state(name, thing)
        for number, model in enumerate(models):
            for name, module in model.named_modules():
                path = f"{type(model).__name__}{number or ''}{name and '.'}{name}"
                self._keep(path, module, plain_attributes(module), MAX_DEPTH)
        for loader in (one for one in known if isinstance(one, DataLoader)):
            for name in ("sampler", "batch_sampler"):
                sampler = getattr(loader, name, None)
                self._keep(f"the loader's {name}", sampler, dict(getattr(sampler, "__dict__", {})), MAX_DEPTH)
        for name, thing in script_variables():
            self._walk(name, thing, MAX_DEPTH)
        for module in modules_of_the_script():
            self._keep(module.__name__, module, _globals_of(module), MAX_DEPTH)

    def changed_since(self, earlier: OwnValues) -> dict[Key, str]:
        """The names of what was there earlier and is another one now, and of what its owner did not have."""
        return {
            key: name
            for key, (name, mark) in self._found.items()
            if self._owners[key[0]] == earlier._owners.get(key[0]) and earlier._found.get(key, ("", None))[1] != mark
        }

    def name_changed_since(self, earlier: OwnValues) -> str:
        """One of these names; empty where there is none."""
        return next(iter(self.changed_since(earlier).values()), "")

    def made_anew_since(self, earlier: OwnValues) -> set[Key]:
        """What has been replaced by something that does not depend on what was there."""
        grown = accumulated_names()
        return {
            key
            for key in self.changed_since(earlier)
            if key[1] not in ("", STATE)
            and (self._things[key] != earlier._things.get(key) if key in self._things else key[1] not in grown)
        }

    def new_since(self, earlier: OwnValues) -> str:
        """The name of an object with a state that was not there; empty where there is none."""
        mine = ((key[0], name) for key, (name, mark) in self._found.items() if key[1] == STATE and mark != NOTHING)
        return next((name for owner, name in mine if self._owners[owner] != earlier._owners.get(owner)), "")

    def _walk(self, path: str, thing: Any, depth: int) -> None:
        if id(thing) in self._seen or isinstance(thing, (*_ATOMS, ModuleType)) or _is_of_lockstep(thing):
            return
        self._seen.add(id(thing))
        if isinstance(thing, _KEPT):
            self._owners[id(thing)] = Same(thing)
            self._note((id(thing), ""), path, thing)
        if has_state(thing) and (id(thing), STATE) not in self._found:
            self._note_state(path, thing)
        if depth:
            for key, member in _members(thing):
                self._walk(f"{path}{key}", member, depth - 1)
        attributes = _attributes(thing)
        if attributes is not None:
            self._keep(path, thing, attributes, depth)
            if not isinstance(thing, (FunctionType, type)):
                self._walk(type(thing).__name__, type(thing), depth)

    def _keep(self, path: str, owner: Any, attributes: Mapping[str, Any], depth: int) -> None:
        self._seen.add(id(owner))
        self._owners[id(owner)] = Same(owner)
        for key, value in attributes.items():
            if not _is_of_lockstep(value):
                self._note((id(owner), key), f"{path}.{key}", value)
                if depth:
                    self._walk(f"{path}.{key}", value, depth - 1)

    def _note_state(self, path: str, thing: Any) -> None:
        self._owners[id(thing)] = Same(thing)
        self._found[id(thing), STATE] = path, _state_of(thing)

    def _note(self, key: Key, name: str, value: Any) -> None:
        mark = self._marks.of(value)
        self._found[key] = name, Same(value) if mark is None else mark
        if not isinstance(value, _ATOMS):
            self._things[key] = Same(value)


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
            made_anew = self.steps.made_anew_since(self.body) if self.body is not None else set()
            changed = {key: name for key, name in changed.items() if key not in made_anew}
            changed |= now.changed_since(self.steps)
        return next(iter(changed.values()), "")


def _state_of(thing: Any) -> Hashable:
    state_of = getattr(thing, "state_dict", None)
    try:
        return Marks().of(dict(state_of()) if callable(state_of) else thing)
    except Exception:  # noqa: BLE001 - a state_dict of the script's own may raise anything
        return object()  # like nothing else: it counts as changed


def _members(thing: Any) -> Iterator[tuple[str, Any]]:
    """What it holds, each with what comes behind its name."""
    if isinstance(thing, dict):
        if len(thing) <= MAX_MEMBERS:
            yield from ((f"[{key!r}]", value) for key, value in list(thing.items()))
    elif isinstance(thing, CONTAINERS):
        if len(thing) <= MAX_MEMBERS:
            yield from ((f"[{number}]", value) for number, value in enumerate(list(thing)))
    elif isinstance(thing, FunctionType) and is_own(thing):
        yield from _held_by(thing)
    elif isinstance(thing, functools.partial):
        yield from ((".func", thing.func), (".args", thing.args), (".keywords", thing.keywords))
    elif isinstance(thing, (MethodType, BuiltinMethodType)):
        yield ".__self__", thing.__self__
    elif isinstance(thing, GeneratorType) and thing.gi_frame is not None and is_the_users(thing.gi_code.co_filename):
        yield from ((f".{name}", value) for name, value in list(thing.gi_frame.f_locals.items()))


def _held_by(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for number, value in enumerate(function.__defaults__ or ()):
        yield f" default {number + 1}", value
    for name, value in (function.__kwdefaults__ or {}).items():
        yield f" default of {name}", value
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f".{name}", cell.cell_contents
        except ValueError:  # it is empty
            continue


def _attributes(thing: Any) -> dict[str, Any] | None:
    """What its attributes are, if they are the script's own values."""
    if isinstance(thing, FunctionType):
        return {**vars(thing), **dict(_assigned_outside(thing))} if is_own(thing) else None
    if isinstance(thing, type):
        return {key: value for key, value in vars(thing).items() if not key.startswith("__")} if is_own(thing) else None
    if isinstance(thing, nn.Module):
        return plain_attributes(thing) if is_of_the_users_class(thing) else None
    if isinstance(thing, _OPEN):
        return vars(thing)
    if not is_of_the_users_class(thing):
        return None
    slots = (name for kind in type(thing).__mro__ for name in _slots(kind))
    return {**{name: getattr(thing, name) for name in slots if hasattr(thing, name)}, **getattr(thing, "__dict__", {})}


def _slots(kind: type) -> Iterator[str]:
    named = vars(kind).get("__slots__", ())
    for name in (named,) if isinstance(named, str) else named:
        if name not in ("__dict__", "__weakref__"):
            yield f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name


def _globals_of(module: ModuleType) -> dict[str, Any]:
    kept = (ModuleType, FunctionType, type)
    found = {key: value for key, value in vars(module).items() if not key.startswith("__")}
    return {key: value for key, value in found.items() if not isinstance(value, kept) or is_own(value)}


def is_own(thing: Any) -> bool:
    """Whether the script, or a module beside it, defines the function or class."""
    name = getattr(thing, "__module__", None)
    file = getattr(sys.modules.get(name or ""), "__file__", None)
    return name == "__main__" or (file is not None and is_the_users(file))


def _is_of_lockstep(thing: Any) -> bool:
    return type(thing).__module__.startswith("lockstep.")


def _assigned_outside(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The `nonlocal` and `global` names that a function assigns, with their values."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=False))
    of_module, of_cells = _stored_outside(function.__code__)
    for name in of_module:
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for name in of_cells:
        if name in cells:
            try:
                yield name, cells[name].cell_contents
            except ValueError:  # it is empty
                continue


@functools.lru_cache(4096)
def _stored_outside(code: CodeType) -> tuple[list[str], list[str]]:
    """Names of the module's variables, and of enclosing functions', that the code assigns."""
    found: dict[str, set[str]] = {"STORE_GLOBAL": set(), "STORE_DEREF": set()}
    for one in dis.get_instructions(code):
        if one.opname in found:
            found[one.opname].add(str(one.argval))
    return sorted(found["STORE_GLOBAL"]), sorted(found["STORE_DEREF"])
