"""Calls in a turn: functions of the user's are followed, those of libraries pass."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch.nn.utils.parametrize
from torch import Tensor, nn

from samebits.rank.checks.script import objects
from samebits.rank.checks.script.found import Found
from samebits.rank.checks.script.objects import (
    NEW,
    attribute_of,
    function_of,
    hooks_of,
    is_listed,
    is_our_own,
    is_own,
    is_saved,
    is_users,
    methods_called,
    parts_of,
    registered,
    shows,
    unwrapped,
    users_methods,
)
from samebits.rank.checks.script.places import Places
from samebits.rank.checks.script.source import functions_in
from samebits.rank.checks.script.values import GRADIENTS, Made, Place, Scope, Seen, Value, mixed

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
    def opened(self, values: Sequence[Value], line: int) -> Value:
        """What somebody gets who may call it."""

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
            except ValueError:
                # The cell is empty.
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
        if isinstance(of.obj, nn.Module) and torch.nn.utils.parametrize.is_parametrized(of.obj, name):
            self.opened([Value(of.obj.get_submodule(f"parametrizations.{name}"), text)], line)
        known = attribute_of(of.obj, name)
        if known is NEW and (self.env is None or place not in self.env):
            for hook, on in (("__getattr__", of), ("__getattribute__", of), ("__get__", Value(static, text))):
                is_module = isinstance(on.obj, ModuleType)
                function = inspect.getattr_static(on.obj if is_module else type(on.obj), hook, None)
                if is_own(function):
                    me = [] if is_module else [self.look(on.obj, on.text, line)]
                    return self.call(function, [*me, Value(name)], {})
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
        elif not value.is_held:
            self.matters(value)


class Calls(Functions):
    """Calls what is known."""

    def __init__(self, found: Found, *, changing: frozenset[Place] = frozenset()) -> None:
        super().__init__(found, changing=changing)
        self._opened: dict[int, Value] = {}

    def called(self, function: Value, args: Sequence[Value], named: Arguments, line: int) -> Value:
        """Call what is known of `function`."""
        thing, everything = unwrapped(function.obj), [*args, *named.values()]
        if function.is_new:
            everything.append(self.opened(everything, line))
            for text, root in function.roots:
                among = root.values() if isinstance(root, dict) else root if isinstance(root, list) else ()
                for one in filter(callable, list(among)):
                    self.called(self.look(one, text, line), args, named, line)
            self.is_act = True
            return self.made([function, *everything], shares=True)
        if isinstance(thing, functools.partial):
            some = [self.look(one, f"{function.text}.args", line) for one in thing.args]
            more = {key: self.look(one, f"{function.text}.{key}", line) for key, one in thing.keywords.items()}
            return self.called(self.look(thing.func, function.text, line), [*some, *args], {**more, **named}, line)
        if isinstance(thing, super):
            return function
        if some := registered(function.obj):
            return mixed([self.called(Value(one, function.text), args, named, line) for one in some])
        if is_own(thing):
            return self.call(thing, args, named)
        if isinstance(thing, type) and is_users(thing):
            return self._constructed(thing, args, named)
        if isinstance(thing, nn.Module):
            if self.found.is_held(thing):
                self.matters(*everything)
            everything.append(self.opened([function, *everything], line))
            return self.made([Value(of=mixed([function, *everything]).of)])
        caller = inspect.getattr_static(type(thing), "__call__", None)
        if is_own(caller) and not isinstance(thing, type):
            return self.call(caller, [function, *args], named)
        owner = getattr(thing, "__self__", None)
        if isinstance(thing, (MethodType, BuiltinFunctionType)) and not isinstance(owner, (type(None), ModuleType)):
            me = self.look(owner, function.text.rpartition(".")[0] or function.text, line)
            own = unwrapped(getattr(thing, "__func__", None))
            if is_own(own) and (isinstance(owner, nn.Module) or not self.found.is_held(owner)):
                return self.call(own, [me, *args], named)
            me = Value(me.obj, me.text, me.roots, me.of | function.of)
            return self._library(Value(thing, thing.__name__), me, args, named, line)
        is_get = thing is getattr and len(args) > 1
        if (is_get or (thing is setattr and len(args) > 2)) and isinstance(key := args[1].obj, str):
            self.is_act = False
            if is_get:
                return self.attribute(args[0], key, line)
            self.set_attribute(args[0], key, args[2], line)
            return Value()
        name = str(getattr(thing, "__name__", type(thing).__name__))
        return self._library(Value(thing, name), None, args, named, line)

    def _constructed(self, kind: type, args: Sequence[Value], named: Arguments) -> Value:
        new = self.made([*args, *named.values()])
        for on, name in ((type(kind), "__call__"), *((kind, one) for one in objects.CONSTRUCTING)):
            if is_own(function := function_of(inspect.getattr_static(on, name, None))):
                first = new if name in ("__init__", "__post_init__") else self.look(kind, kind.__name__, 0)
                self.call(function, [first, *(args if name != "__post_init__" else [])], named)
        libraries = [one for one in kind.__mro__ if not is_users(one) and one is not object]
        for name, function, _ in users_methods(None, kind.__mro__ if libraries else ()):
            # Such as `run` of a thread, `visit_Name` of a visitor.
            if _is_known(name, libraries):
                self.call(function, [new], {})
        self.is_act = False
        return new

    def method_of_new(self, of: Value, name: str, args: Sequence[Value], named: Arguments, line: int) -> Value:
        """A method of something of which the class is not known: any of that name that the script has."""
        results = [self.call(one, [of, *args], named) for one in methods_called(name)]
        return mixed([*results, self._library(Value(text=name), of, args, named, line)])

    def _library(self, function: Value, me: Value | None, args: Sequence[Value], named: Arguments, line: int) -> Value:
        """A function of a library, or a method of its objects. Its name tells what it changes."""
        thing, name, everything = function.obj, function.text, [*args, *named.values()]
        module = str(getattr(thing, "__module__", None) or type(getattr(thing, "__self__", None)).__module__)
        path, at = f"{module.partition('.')[0]}.{name}", Seen(f"{name}()", self.file, line)
        if path in objects.GIVING:
            return self.look(thing(), at.text, line)
        is_exec = any(thing is one for one in (exec, eval, globals))
        kind = "exec" if is_exec else "setter" if path in objects.SETTERS else ""
        if kind and not self.is_behind:
            self.found.name(kind, thing, at)
        if name == "zero_grad":
            self.assign(GRADIENTS, Value(is_held=True))
        elif name == "backward":
            self.read(GRADIENTS, NEW, "gradients", line)
            self.assign(GRADIENTS, Value())
        if me is None or me.is_new:
            is_shown = name in objects.SHOWING if me else is_listed(f"{module}.{name}", objects.SHOWN)
        else:
            is_shown = shows(me.obj)
        self.is_act = not is_shown
        if not is_shown:
            everything.append(self.opened([*([] if me else [Value(thing, name)]), *everything], line))
            if me is not None and not isinstance(me.obj, nn.Module):
                everything.append(self._whole(me, line, is_its_own=True))
        if me is not None and not me.is_new and self.found.is_held(me.obj):
            is_prepare = is_our_own(me.obj) and name == "prepare"
            if name not in objects.READING and not is_prepare:
                self.matters(*everything)
            self._hooks(me.obj, me.text)
            new = self.made([] if is_our_own(me.obj) else [me], shares=True)
            return Value(roots=new.roots, of=new.of, is_held=is_prepare)
        if name in objects.WRITERS:
            self.change(mixed(args[:2]), line, *everything)
        elif fills(name):
            self.change(me or mixed(args[:1]), line, *everything)
            self.is_act = self.is_act and name in objects.ACTING
        if "out" in named:
            self.change(named["out"], line, *everything)
        if name.startswith(objects.DRAWS):
            self.matters()
        return self.made([*([me.part] if me else []), *everything], shares=name not in objects.SCALARS)

    def opened(self, values: Sequence[Value], line: int) -> Value:
        """An operator, a loop or a library gets these, and may call what is the user's; from what that gives, it computes."""
        results = []
        for value in values:
            thing = value.obj
            if isinstance(thing, (FunctionType, MethodType, functools.partial)):
                if is_own(unwrapped(getattr(thing, "__func__", getattr(thing, "func", thing)))):
                    self.matters(self.called(value, [], {}, line))
            elif isinstance(thing, nn.Module):
                self._module(thing, value.text)
            elif isinstance(thing, BuiltinFunctionType) and not isinstance(thing.__self__, (type(None), ModuleType)):
                self.called(value, [], {}, line)
            elif thing is not NEW:
                if isinstance(thing, type) and is_users(thing):
                    self._constructed(thing, [], {})
                results.append(self._whole(value, line))
        return Value(of=mixed(results).of)

    def _whole(self, me: Value, line: int, *, is_its_own: bool = False) -> Value:
        """Of an object of the user's class, any method may be called; of what libraries made, the parts that are the user's.

        A class, and the object whose method `is_its_own` of a library, are called by the names that the library knows.
        """
        key = -id(me.obj) if is_its_own else id(me.obj)
        if me.is_new or key in self._opened or (self.found.is_held(me.obj) and not [*parts_of(me.obj)]):
            return self._opened.get(key, Value())
        self._opened[key], results = Value(), []
        kinds = [*type(me.obj).__mro__, *(me.obj.__mro__ if isinstance(me.obj, type) else ())]
        of_library = [one for one in kinds if not is_users(one)] if is_its_own or isinstance(me.obj, type) else None
        for name, function, is_bound in users_methods(me.obj, kinds):
            if of_library is None or name.startswith("__") or _is_known(name, of_library):
                results.append(self.call(function, [me] if is_bound else [], {}))
        for name, part in parts_of(me.obj):
            results.append(self.opened([self.look(part, f"{me.text}.{name}", line)], line))
        self._opened[key] = mixed(results)
        return self._opened[key]

    def look(self, thing: Any, text: str, line: int) -> Value:
        value = super().look(thing, text, line)
        if isinstance(thing, Tensor) and thing.requires_grad and id(thing) not in self._opened:
            self._opened[id(thing)] = Value()
            self._hooks(thing, text)
        return value

    def _module(self, thing: nn.Module, text: str) -> None:
        """What runs when a module is called: `forward` and hooks, of it and of all that is in it."""
        for name, one in thing.named_modules():
            if id(one) in self._opened:
                continue
            self._opened[id(one)] = Value()
            path = f"{text}.{name}" if name else text
            me = self.look(one, path, 0)
            forward = vars(one).get("forward", inspect.getattr_static(type(one), "forward", None))
            function = inspect.unwrap(getattr(forward, "__func__", forward))
            # A compiled module says that it wraps the original one.
            if isinstance(function, nn.Module):
                self._module(function, path)
            elif is_own(function):
                self.matters(self.call(function, [me], {}))
            if one.training and getattr(one, "track_running_stats", False):
                self.change(me, 0)
            for part in (one, *one.parameters(recurse=False)):
                self._hooks(part, path, me)

    def _hooks(self, thing: Any, text: str, *args: Value) -> None:
        """Functions that are registered at a module, an optimizer or a parameter."""
        for hook in hooks_of(thing):
            self.matters(self.called(Value(hook, text), args, {}, 0))


def _is_known(name: str, libraries: Sequence[type]) -> bool:
    """Whether a class of a library may call a method of its subclass."""
    return name.startswith(objects.DISPATCHED) or any(hasattr(one, name) for one in libraries)


def fills(name: str) -> bool:
    """Whether functions of that name change what they are called on, whatever it is."""
    return name in objects.FILLS or (name.endswith("_") and not name.startswith("_") and name != "requires_grad_")
