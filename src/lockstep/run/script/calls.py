"""Calls in a turn: functions of the user's are followed, those of libraries pass."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
from collections.abc import Sequence
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

from lockstep.run.script.expressions import Expressions
from lockstep.run.script.harmless import FILLS, MODULE_READS, PURE, READS, SCALARS, SETTERS, WRITERS
from lockstep.run.script.objects import (
    NEW,
    function_of,
    is_our_own,
    is_own,
    is_users,
    methods_called,
)
from lockstep.run.script.values import GRADIENTS, Scope, Seen, Value, roots_of


class Calls(Expressions):
    """Calls functions, methods and classes."""

    def _of_Call(self, node: ast.Call, scope: Scope) -> Value:
        line = node.lineno
        if isinstance(node.func, ast.Attribute):
            of = self.value(node.func.value, scope)
            args, named = self._arguments(node, scope)
            if not isinstance(of.obj, (ModuleType, type)):
                return self._method(of, node.func.attr, args, named, line)
            return self._called(self._attribute(of, node.func.attr, line), args, named, line, node)
        function = self.value(node.func, scope)
        args, named = self._arguments(node, scope)
        return self._called(function, args, named, line, node)

    def _arguments(self, node: ast.Call, scope: Scope) -> tuple[list[Value], dict[str, Value]]:
        args: list[Value] = []
        for one in node.args:
            value = self.value(one.value if isinstance(one, ast.Starred) else one, scope)
            elements = value.obj if isinstance(one, ast.Starred) and isinstance(value.obj, (tuple, list)) else None
            args += [value] if elements is None else [self._look(part, value.text, node.lineno) for part in elements]
        return args, {one.arg or "**": self.value(one.value, scope) for one in node.keywords}

    def _method(self, of: Value, name: str, args: list[Value], named: dict[str, Value], line: int) -> Value:
        everything = [of, *args, *named.values()]
        if name == "zero_grad" and self._env is not None:
            self._env[GRADIENTS] = Value(is_prepared=True)
        elif name == "backward":
            self._read(GRADIENTS, NEW, "gradients", line)
            self._set(GRADIENTS, Value())
        kind = of.kind if of.is_new else type(of.obj)
        function = inspect.getattr_static(kind, name, None) if kind is not None else None
        held = not of.is_new and self._judge.is_held(of.obj)
        if of.is_new and kind is None:
            if not of.is_ours:
                for one in methods_called(name):
                    self.call(one, [of, *args], named)
                for text, thing in of.roots:
                    if isinstance(thing, (list, tuple, dict)) and not self._judge.is_held(thing):
                        self._elements(thing, text, name, args, named)
                if name in FILLS or (name.endswith("_") and not name.startswith("_")):
                    self._changes(of, line)
            self.given([*args, *named.values()], line)
            return Value(roots=roots_of(everything), is_ours=of.is_ours)
        if isinstance(wrapped := function_of(function), FunctionType) and is_own(wrapped):
            first = [] if isinstance(function, staticmethod) else [of]
            return Value() if held and not isinstance(of.obj, nn.Module) else self.call(wrapped, [*first, *args], named)
        if not of.is_new and (held or is_our_own(of.obj)):
            if name == "backward" and self._before_lanes is None:
                self._before_lanes = set(self._env or {})
            self.given([*args, *named.values()], line)
            is_prepared = name == "prepare" and is_our_own(of.obj)
            return Value(roots=() if is_our_own(of.obj) else of.roots, is_ours=True, is_prepared=is_prepared)
        if function is None and not of.is_new:
            return self._called(self._attribute(of, name, line), args, named, line, None)
        self.given([*args, *named.values()], line)
        if name in WRITERS:
            for value in args:
                self._changes(value, line)
        if not of.is_new and self._judge.is_changeable(of.obj):
            if isinstance(of.obj, nn.Module):
                if name not in MODULE_READS:
                    self._changes(of, line)
            elif hasattr(of.obj, "requires_grad"):
                if name in FILLS or (name.endswith("_") and not name.startswith("_")):
                    self._changes(of, line)
            elif name not in READS:
                self._changes(of, line)
        return Value(roots=roots_of(everything))

    def _elements(self, thing: Any, text: str, name: str, args: list[Value], named: dict[str, Value]) -> None:
        """A method is called on some element of a container."""
        for number, one in enumerate(list(thing.values() if isinstance(thing, dict) else thing)[:64]):
            function = function_of(inspect.getattr_static(type(one), name, None))
            if isinstance(function, FunctionType) and is_own(function) and not self._judge.is_held(one):
                part = f"{text}[{number}]"
                self.call(function, [Value(one, part, ((part, one),)), *args], named)

    def _called(
        self, function: Value, args: list[Value], named: dict[str, Value], line: int, node: ast.Call | None
    ) -> Value:
        thing, everything = function.obj, [*args, *named.values()]
        if isinstance(thing, functools.partial):
            held = [self._look(one, f"{function.text}.args", line) for one in thing.args]
            more = {key: self._look(one, f"{function.text}.{key}", line) for key, one in thing.keywords.items()}
            return self._called(
                self._look(thing.func, function.text, line), [*held, *args], {**more, **named}, line, node
            )
        if isinstance(thing, MethodType):
            me = self._look(thing.__self__, function.text.rpartition(".")[0] or function.text, line)
            if not isinstance(thing.__self__, type):
                return self._method(me, thing.__name__, args, named, line)
            return self._called(self._look(thing.__func__, function.text, line), [me, *args], named, line, node)
        own = inspect.unwrap(thing) if hasattr(thing, "__wrapped__") and callable(thing) else thing
        for one in (own, thing):
            if isinstance(one, FunctionType) and is_own(one):
                self.call(thing, args, named) if one is not thing and isinstance(thing, FunctionType) else None
                return self.call(one, args, named)
        if isinstance(thing, type) and is_users(thing):
            return self._constructed(thing, args, named)
        if function.is_new:
            self.given(everything, line)
            for text, root in function.roots:
                for one in (
                    (root.values() if isinstance(root, dict) else root) if isinstance(root, (list, tuple, dict)) else ()
                ):
                    if isinstance(one, (FunctionType, MethodType)) or is_users(type(one)):
                        self._called(self._look(one, text, line), args, named, line, node)
            return Value(roots=roots_of([function, *everything]), is_ours=function.is_ours)
        caller = inspect.getattr_static(type(thing), "__call__", None)
        if isinstance(thing, nn.Module):
            self.module(thing, function.text)
            self.given(everything, line)
            return Value(roots=roots_of(args))
        if isinstance(caller, FunctionType) and is_own(caller) and not isinstance(thing, type):
            return self.call(caller, [function, *args], named)
        owner = getattr(thing, "__self__", None)
        is_method = isinstance(thing, BuiltinFunctionType) and not isinstance(owner, (type(None), ModuleType, type))
        if is_method and self._judge.is_changeable(owner):
            me = self._look(owner, function.text.rpartition(".")[0], line)
            return self._method(me, thing.__name__, args, named, line)
        return self._library(function, args, named, line, node)

    def _constructed(self, kind: type, args: list[Value], named: dict[str, Value]) -> Value:
        new = Value(kind=kind, roots=roots_of([*args, *named.values()]))
        for on, name in ((type(kind), "__call__"), (kind, "__new__"), (kind, "__init__"), (kind, "__post_init__")):
            function = function_of(inspect.getattr_static(on, name, None))
            if isinstance(function, FunctionType) and is_own(function):
                first = (
                    new
                    if name in ("__init__", "__post_init__")
                    else Value(kind, kind.__name__, ((kind.__name__, kind),))
                )
                self.call(function, [first, *(args if name != "__post_init__" else [])], named)
        return new

    def given(self, values: Sequence[Value], line: int) -> None:
        """A library gets these, and may call what is the user's."""
        for value in values:
            if value.is_new:
                continue
            if isinstance(value.obj, (FunctionType, MethodType, functools.partial)):
                self._called(value, [], {}, line, None)
            elif isinstance(value.obj, nn.Module) and not self._judge.is_held(value.obj):
                self.module(value.obj, value.text)
            else:
                self._opened(value)

    def _library(
        self, function: Value, args: list[Value], named: dict[str, Value], line: int, node: ast.Call | None
    ) -> Value:
        thing = function.obj
        name = str(getattr(thing, "__name__", type(thing).__name__))
        module = str(
            getattr(thing, "__module__", None) or getattr(type(getattr(thing, "__self__", None)), "__module__", "")
        )
        path = f"{module.partition('.')[0]}.{name}"
        everything = [*args, *named.values()]
        at = Seen(f"{name}()", self._file, line)
        if thing in (exec, eval, globals):
            if not self.is_behind:
                self._judge.name("exec", thing, at)
            return Value()
        if path in SETTERS and not self.is_behind and path != "decimal.getcontext":
            self._judge.name("setter", thing, at)
        if thing in (setattr, delattr, getattr, hasattr) and len(args) > 1 and isinstance(args[1].obj, str):
            if thing in (getattr, hasattr):
                return self._attribute(args[0], args[1].obj, line)
            self._set_attribute(args[0], args[1].obj, args[2] if len(args) > 2 else Value(), line)
            return Value()
        if thing is vars and args and not args[0].is_new:
            known = getattr(args[0].obj, "__dict__", NEW)
            return Value() if known is NEW else Value(known, f"vars({args[0].text})", ((args[0].text, args[0].obj),))
        self._check_counted(thing, module, everything, at, node)
        self.given(everything, line)
        if path in WRITERS or name in WRITERS or (name.endswith("_") and not name.startswith("_")):
            for value in everything[:2]:
                self._changes(value, line)
        elif module.partition(".")[0] not in PURE:
            for value in everything:
                if isinstance(value.obj, (list, dict, set, bytearray)) and not self.is_behind:
                    self._changes(value, line)
        elif inspect.ismethoddescriptor(thing) and name not in READS and args:
            self._changes(args[0], line)
        if "out" in named:
            self._changes(named["out"], line)
        is_clock = module in ("time", "datetime") or name in ("perf_counter", "elapsed_time")
        if path == "decimal.getcontext":
            return Value(text="decimal.getcontext()")
        passes = module in ("builtins", "itertools") or module.startswith("tqdm")
        ours = module.startswith("lockstep") or (passes and bool(args) and all(one.is_ours for one in args))
        return Value(roots=() if name in SCALARS else roots_of(everything), is_clock=is_clock, is_ours=ours)

    def _check_counted(self, thing: Any, module: str, values: Sequence[Value], at: Seen, node: ast.Call | None) -> None:
        """Name what counts steps from outside: it begins at its beginning where a run resumes."""
        if node is None or self.is_behind or module.partition(".")[0] not in ("builtins", "itertools"):
            return
        over_steps = [
            one for one in node.args if isinstance(one, ast.Call) and getattr(one.func, "attr", "") == "steps"
        ]
        if over_steps and thing in (enumerate, zip, map, itertools.islice) and any(one.is_ours for one in values):
            self._judge.name("counted", thing, at)
