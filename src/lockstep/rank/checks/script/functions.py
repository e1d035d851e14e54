"""How a turn enters functions of the user's, and reads and sets attributes, which may be functions."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from lockstep.rank.checks.script.found import Found
from lockstep.rank.checks.script.objects import NEW, attribute_of, function_of, is_own, is_saved, registered
from lockstep.rank.checks.script.places import Places
from lockstep.rank.checks.script.source import functions_in
from lockstep.rank.checks.script.values import Made, Place, Scope, Seen, Value, mixed

MOST_DEEP = 40
Arguments = Mapping[str, Value]


class Functions(Places, ABC):
    """Follows them."""

    def __init__(self, found: Found, *, changing: frozenset[Place] = frozenset()) -> None:
        super().__init__(found, changing=changing)
        self.stack: list[CodeType] = []
        self.is_act = False
        """Whether the last call was to a library that may do more than give a result."""

    @abstractmethod
    def body(self, node: Any, scope: Scope) -> Value:
        """Run a function's body; what it returns."""

    def call(self, function: FunctionType, args: Sequence[Value], named: Arguments) -> Value:
        """Follow a function of the user's."""
        code = function.__code__
        if code in self.stack or self.env is None:
            return self.made([*args, *named.values()], shares=True)
        nodes = functions_in(code.co_filename).get((code.co_name, code.co_firstlineno), [])
        if not nodes or len(self.stack) > MOST_DEEP:
            self.found.name("hidden", function, Seen(code.co_name, code.co_filename, code.co_firstlineno))
            return Value()
        cells = {}
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                cells[name] = cell.cell_contents
            except ValueError:  # it is empty
                cells[name] = NEW
        if args and isinstance(kind := cells.get("__class__"), type) and isinstance(args[0].obj, (kind, type)):
            cells["super"] = super(kind, args[0].obj)
        local = frozenset((*code.co_varnames, *code.co_cellvars))
        scope = Scope(next(self.keys), local, function.__globals__, cells=cells)
        before = self.file, self.looks
        self.file, self.looks = code.co_filename, True
        self.stack.append(code)
        results = []
        for node in nodes:
            self._bind_arguments(function, args, named, scope)
            results.append(self.body(node, scope))
        self.stack.pop()
        (self.file, self.looks), self.is_act = before, False
        return mixed(results) if len(results) > 1 else results[0]

    def _bind_arguments(self, function: FunctionType, args: Sequence[Value], named: Arguments, scope: Scope) -> None:
        signature = inspect.signature(function, follow_wrapped=False)
        try:
            given: dict[str, Any] = signature.bind_partial(*args, **named).arguments
        except TypeError:
            given = dict.fromkeys(signature.parameters, mixed([*args, *named.values()]))
        for name, parameter in signature.parameters.items():
            value = given.get(name)
            if value is None and parameter.default is not parameter.empty:
                value = self.look(parameter.default, f"the default of {name}", function.__code__.co_firstlineno)
            elif not isinstance(value, Value):
                value = self.made(value.values() if isinstance(value, dict) else value or ())
            self.assign(("variable", scope.key, name), value)

    def attribute(self, of: Value, name: str, line: int) -> Value:
        if of.is_new:
            known = [made.named.get(name) for _, made in of.roots if isinstance(made, Made)]
            value = mixed([one for one in known if one]) if known and all(known) else of.part
            return Value(roots=value.roots, of=value.of | of.of)
        place, text = ("attribute", id(of.obj), name), f"{of.text}.{name}" if of.text else name
        static = inspect.getattr_static(type(of.obj), name, None)
        if isinstance(static, (property, functools.cached_property)) and is_own(getter := function_of(static)):
            return self.call(getter, [of], {})
        if isinstance(static, functools.singledispatchmethod):
            self.matters(*(self.call(one, [of], {}) for one in registered(static.dispatcher) if is_own(one)))
        known = attribute_of(of.obj, name)
        if known is NEW and (self.env is None or place not in self.env):
            for hook, on in (("__getattr__", of), ("__getattribute__", of), ("__get__", Value(static, text))):
                function = inspect.getattr_static(type(on.obj), hook, None)
                if is_own(function):
                    return self.call(function, [self.look(on.obj, on.text, line), Value(name)], {})
        value = self.read(place, known, text, line)
        return Value(value.obj, value.text, value.roots, value.of | of.of, value.is_held)

    def set_attribute(self, of: Value, name: str, value: Value, line: int) -> None:
        if of.is_new:
            for _, made in of.roots:
                if isinstance(made, Made):
                    made.named[name] = mixed([value, made.named.get(name, value)])
            self.change(of, line, value)
            return
        setter = inspect.getattr_static(type(of.obj), name, None)
        for function, args in ((getattr(setter, "fset", None), [of, value]),
                               (inspect.getattr_static(type(of.obj), "__setattr__", None), [of, Value(name), value])):  # fmt: skip
            if function is not None and is_own(function):
                self.call(function, args, {})
        if not self.found.is_held(of.obj) or (isinstance(of.obj, nn.Module) and not is_saved(of.obj, name)):
            self.store(("attribute", id(of.obj), name), value, f"{of.text}.{name}", line, of.obj)
        else:
            self.matters(value)
