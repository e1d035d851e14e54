"""One turn of a script's loop, followed through its source: what it takes from the turn before.

A *place* is a variable, or an attribute of an object that was there before the turn. What the turn reads of a place before it
assigns it there, and assigns somewhere, is carried on; so is what it changes inside (`seen.append`, `weights[0] = 1`) of
anything that it did not make itself. Functions of the user's own files are followed where they are called.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from types import FunctionType, MethodType
from typing import Any

from torch import nn

from lockstep.run.script.calls import Calls
from lockstep.run.script.objects import (
    function_of,
    hooks_of,
    is_users,
)
from lockstep.run.script.values import GRADIENTS, Place, Scope, Value, meet

SKIPPED = ("__init__", "__new__", "__del__", "__repr__", "__str__", "__post_init__", "__init_subclass__", "__reduce__")
"""Methods that no loop calls by itself."""


class Turn(Calls):
    """Reads one turn, or what is called by others than the script (hooks, `forward`)."""

    def follow(self, loop: ast.For | ast.While, behind: Sequence[ast.stmt], scope: Scope) -> None:
        """Go through one turn of `loop` and what lies behind it, and name what is carried on."""
        self._file = scope.file
        self._ends.append([])
        if isinstance(loop, ast.For):
            of = self.value(loop.iter, scope)
            self._bind(loop.target, Value(is_ours=of.is_ours, roots=of.roots), scope)
        else:
            self.value(loop.test, scope)
        self.block(loop.body, scope)
        self._env = meet([self._env, *self._ends.pop()])
        surely, left = set(self._env or {}), (self._env or {}).get(GRADIENTS)
        if GRADIENTS in self.reads and left is not None and not left.is_prepared:
            self._judge.name("gradients", None, self.reads[GRADIENTS])
        self.is_behind = True
        self._ends.append([])
        self.block(behind, scope)
        for place, (at, owner, is_excused) in self.stores.items():
            if not is_excused and (place in self.reads or self._is_read_unseen(place, owner, surely)):
                self._judge.name("variable" if place[0] == "v" else "attribute", owner, at)

    def _is_read_unseen(self, place: Place, owner: Any, surely: set[Place]) -> bool:
        """Whether a library may read an attribute before it is assigned."""
        if place[0] == "v" or is_users(type(owner)) or isinstance(owner, FunctionType):
            return False
        return place not in (surely if self._before_lanes is None else self._before_lanes)

    def whole(self, thing: Any, text: str) -> None:
        """Read all methods of an object of the user's class: a library may call any of them."""
        if id(thing) in self._whole or self._judge.is_held(thing):
            return
        self._whole.add(id(thing))
        me = Value(thing, text, ((text, thing),))
        for kind in type(thing).__mro__:
            if is_users(kind):
                for name, one in list(vars(kind).items()):
                    function = function_of(one)
                    if name not in SKIPPED and isinstance(function, FunctionType):
                        self.call(function, [me], {})

    def module(self, thing: nn.Module, text: str) -> None:
        """Read what runs when a module is called: `forward` and hooks, of it and of all that is in it."""
        if id(thing) in self._whole:
            return
        for name, one in thing.named_modules():
            if id(one) in self._whole:
                continue
            self._whole.add(id(one))
            path = f"{text}.{name}" if name else text
            me = Value(one, path, ((path, one),) if self._judge.is_changeable(one) else ())
            forward = vars(one).get("forward", inspect.getattr_static(type(one), "forward", None))
            if isinstance(forward, (FunctionType, MethodType)):
                mine = inspect.unwrap(getattr(forward, "__func__", forward))
                if isinstance(mine, nn.Module):  # a compiled one says that it wraps its module
                    self.module(mine, path)
                else:
                    self.call(mine, [me], {})
            if getattr(one, "training", False) and getattr(one, "track_running_stats", False):
                self._changes(me, 0)
            for hook in hooks_of(one):
                self._called(Value(hook, path), [me], {}, 0, None)
