"""Where a turn of a loop finds names, and what becomes of them there; how it enters a function."""

from __future__ import annotations

import ast
import builtins
import enum
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torch import nn

from lockstep.run.script.objects import (
    NEW,
    is_own,
    is_users,
)
from lockstep.run.script.source import functions_in
from lockstep.run.script.values import Judge, Place, Scope, Seen, Value, joined, meet, roots_of

MOST_DEEP = 40


class Places:
    """What is assigned in the turn so far.

    Args:
        judge: knows objects.
        frame_cells: place and value of variables of running functions that functions inside them use, by name.
    """

    def __init__(self, judge: Judge, frame_cells: Mapping[str, tuple[Place, Any]]) -> None:
        self._judge, self._frame_cells = judge, frame_cells
        self._env: dict[Place, Value] | None = {}
        """What is assigned on every way to here; None where nothing comes."""
        self._keys, self._nodes = itertools.count(1), 0
        self._stack: list[CodeType] = []
        self._ends: list[list[dict[Place, Value]]] = []
        """Of each loop under way, what is assigned where the script leaves a turn early."""
        self._results: list[tuple[list[Value], list[dict[Place, Value]]]] = [([], [])]
        self._whole: set[int] = set()
        self._before_lanes: set[Place] | None = None
        self._file, self.is_behind = "", False
        self.reads: dict[Place, Seen] = {}
        self.stores: dict[Place, tuple[Seen, Any, bool]] = {}
        """Where each is assigned, the attribute's owner, and whether only clocks and our own objects are."""

    def call(self, function: FunctionType, args: Sequence[Value], named: Mapping[str, Value]) -> Value:
        """Follow a function, if it is the user's."""
        code = function.__code__
        if not is_own(function) or code in self._stack or self._env is None:
            return Value(roots=roots_of([*args, *named.values()]))
        nodes = functions_in(code.co_filename).get((code.co_name, code.co_firstlineno), [])
        if not nodes or len(self._stack) > MOST_DEEP:
            self._judge.name("hidden", function, Seen(code.co_name, code.co_filename, code.co_firstlineno))
            return Value()
        file, self._file = self._file, code.co_filename
        scope = self._scope_of(function)
        self._stack.append(code)
        found = []
        for node in nodes:
            self._bind_arguments(node.args, function, args, named, scope)
            found.append(self._body(node, scope))
        self._stack.pop()
        self._file = file
        return joined(found)

    def _scope_of(self, function: FunctionType) -> Scope:
        code, cells = function.__code__, {}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            try:
                content = cell.cell_contents
            except ValueError:  # it is empty
                content = NEW
            place, value = self._frame_cells.get(name, (("v", 0, ""), NEW))
            same = place[1] and value is content
            cells[name] = place if same else ("v", id(cell), name), content
        local = frozenset((*code.co_varnames, *code.co_cellvars))
        return Scope(next(self._keys), local, {}, function.__globals__, code.co_filename, cells)

    def _bind_arguments(
        self, of: ast.arguments, function: FunctionType, args: Sequence[Value], named: Mapping[str, Value], scope: Scope
    ) -> None:
        names, left = [one.arg for one in (*of.posonlyargs, *of.args)], dict(named)
        given = dict(zip(names, args, strict=False))
        defaults = dict(zip(reversed(names), reversed(function.__defaults__ or ()), strict=False))
        defaults |= function.__kwdefaults__ or {}
        for name in [*names, *(one.arg for one in of.kwonlyargs)]:
            if name in given or name in left:
                value = given.get(name) or left.pop(name)
            elif name in defaults:
                value = self._look(defaults[name], f"the default of {name}", function.__code__.co_firstlineno)
            else:
                value = Value()
            self._set(("v", scope.key, name), value)
        for rest, values in ((of.vararg, args[len(names) :]), (of.kwarg, left.values())):
            if rest is not None:
                self._set(("v", scope.key, rest.arg), Value(roots=roots_of(values)))

    def _body(self, node: Any, scope: Scope) -> Value:
        """Run a function's body; what it returns."""
        self._results.append(([], []))
        self._ends.append([])
        if isinstance(node, ast.Lambda):
            self._results[-1][0].append(self.value(node.body, scope))
        else:
            self.block(node.body, scope)
        values, ends = self._results.pop()
        self._ends.pop()
        self._env = meet([self._env, *ends])
        return joined(values) if values else Value()

    def _find(self, name: str, scope: Scope) -> tuple[Place, Any, bool]:
        """Where a name's value is, what it was before the turn, and whether that place outlives the turn."""
        one: Scope | None = scope
        while one is not None:
            if name in one.local:
                return ("v", one.key, name), one.values.get(name, NEW), one.is_running
            if name in one.cells:
                return *one.cells[name], True
            one = one.outer
        known = scope.around.get(name, NEW)
        if known is NEW and hasattr(builtins, name):
            known = getattr(builtins, name)
        return ("v", id(scope.around), name), known, True

    def _name(self, name: str, scope: Scope, line: int) -> Value:
        place, known, _ = self._find(name, scope)
        return self._read(place, known, name, line)

    def _read(self, place: Place, known: Any, text: str, line: int) -> Value:
        if self._env is not None and place in self._env:
            return self._env[place]
        self.reads.setdefault(place, Seen(text, self._file, line))
        return Value() if known is NEW else self._look(known, text, line)

    def _look(self, thing: Any, text: str, line: int) -> Value:
        value = Value(thing, text, ((text, thing),) if self._judge.is_changeable(thing) else ())
        if not self.is_behind:
            self._judge.look(value, Seen(text, self._file, line))
        return value

    def _set(self, place: Place, value: Value) -> None:
        if self._env is not None:
            self._env[place] = value

    def _store(self, place: Place, value: Value, text: str, line: int, owner: Any = None) -> None:
        self._set(place, value)
        if not self.is_behind:
            excused = value.is_clock or value.is_prepared
            at, owner, before = self.stores.get(place, (Seen(text, self._file, line), owner, True))
            self.stores[place] = at, owner, excused and before

    def _changes(self, value: Value, line: int) -> None:
        """The turn changes what `value` is a part of."""
        if self.is_behind:
            return
        for text, thing in value.roots:
            if not self._judge.is_held(thing):
                self._judge.name("changed", thing, Seen(text, self._file, line))

    def _ways(self, *ways: Callable[[], None]) -> None:
        before, ends = self._env, []
        for way in ways:
            self._env = None if before is None else dict(before)
            way()
            ends.append(self._env)
        self._env = meet(ends)

    def _part_of(self, value: Value) -> Value:
        return replace(value, obj=NEW, text="", kind=None)

    def _opened(self, value: Value) -> Value:
        """A value that an operator, a loop or a library gets: of an object of the user's, any method may be called."""
        if not (value.is_new or isinstance(value.obj, (type, FunctionType, ModuleType, nn.Module, enum.Enum))):
            if is_users(type(value.obj)):
                self.whole(value.obj, value.text)
        elif isinstance(value.obj, enum.EnumMeta):
            return Value(roots=())
        return value

    # What the classes below add

    def block(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        """Go through statements."""
        raise NotImplementedError

    def value(self, node: ast.AST | None, scope: Scope) -> Value:
        """What an expression gives."""
        raise NotImplementedError

    def closure(self, node: Any, scope: Scope) -> None:
        """A function is made in the turn."""
        raise NotImplementedError

    def whole(self, thing: Any, text: str) -> None:
        """Read all methods of an object of the user's class: a library may call any of them."""
        raise NotImplementedError

    def module(self, thing: nn.Module, text: str) -> None:
        """Read what runs when a module is called: `forward` and hooks, of it and of all that is in it."""
        raise NotImplementedError
