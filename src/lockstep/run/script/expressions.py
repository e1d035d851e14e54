"""The expressions of a turn, but for calls."""

from __future__ import annotations

import ast
import inspect
from types import FunctionType
from typing import Any

from lockstep.run.script.objects import (
    NEW,
    attribute_of,
    is_own,
    is_users,
)
from lockstep.run.script.source import bound_in, names_in
from lockstep.run.script.statements import Statements
from lockstep.run.script.values import Scope, Seen, Value, joined, meet, roots_of

MOST_NODES = 400_000
"""How many pieces of source are followed; a script of 1,000 lines has about 20,000."""


class Expressions(Statements):
    """Reads names, attributes and items."""

    def value(self, node: ast.AST | None, scope: Scope) -> Value:
        if node is None:
            return Value()
        self._nodes += 1
        if self._nodes > MOST_NODES:
            if self._nodes == MOST_NODES + 1:
                self._judge.name("hidden", None, Seen("the loop", self._file, getattr(node, "lineno", 0)))
            return Value()
        way = getattr(self, f"_of_{type(node).__name__}", None)
        if way is not None:
            found: Value = way(node, scope)
            return found
        parts = [self._opened(self.value(one, scope)) for one in ast.iter_child_nodes(node)]
        return Value(roots=() if isinstance(node, (ast.BinOp, ast.Compare, ast.UnaryOp)) else roots_of(parts),
                     is_clock=isinstance(node, ast.BinOp) and any(one.is_clock for one in parts),
                     is_ours=bool(parts) and not isinstance(node, ast.BinOp) and all(one.is_ours for one in parts))  # fmt: skip

    def _of_Constant(self, node: ast.Constant, _scope: Scope) -> Value:
        return Value(node.value)

    def _of_Name(self, node: ast.Name, scope: Scope) -> Value:
        return self._name(node.id, scope, node.lineno)

    def _of_NamedExpr(self, node: ast.NamedExpr, scope: Scope) -> Value:
        value = self.value(node.value, scope)
        self._bind(node.target, value, scope)
        return value

    def _of_IfExp(self, node: ast.IfExp, scope: Scope) -> Value:
        self.value(node.test, scope)
        return joined([self.value(node.body, scope), self.value(node.orelse, scope)])

    def _of_Lambda(self, node: ast.Lambda, scope: Scope) -> Value:
        self.closure(node, scope)
        return Value()

    def closure(self, node: Any, scope: Scope) -> None:
        """A function that is made in the turn: it is read where it is made, as if it were called there."""
        inner = Scope(next(self._keys), bound_in(node), {}, scope.around, scope.file, outer=scope)
        for one in ast.walk(node.args):
            if isinstance(one, ast.arg):
                self._set(("v", inner.key, one.arg), Value())
        before = dict(self._env) if self._env is not None else None
        self._body(node, inner)
        self._env = meet([self._env, before])

    def _comprehension(self, node: Any, scope: Scope) -> Value:
        targets = {name for one in node.generators for name in names_in(one.target)}
        inner = Scope(next(self._keys), frozenset(targets), {}, scope.around, scope.file, scope.cells, outer=scope)
        parts = []
        for one in node.generators:
            of = self._opened(self.value(one.iter, inner))
            self._bind(one.target, self._part_of(of), inner)
            parts += [of, *(self.value(test, inner) for test in one.ifs)]
        elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        return Value(roots=roots_of([*parts, *(self.value(one, inner) for one in elements)]))

    _of_ListComp = _of_SetComp = _of_DictComp = _of_GeneratorExp = _comprehension

    def _of_Subscript(self, node: ast.Subscript, scope: Scope) -> Value:
        of, key = self.value(node.value, scope), self.value(node.slice, scope)
        if isinstance(of.obj, (list, tuple, dict)) and not key.is_new and not is_users(type(of.obj)):
            try:
                found = of.obj[key.obj]
            except (LookupError, TypeError):
                return Value(roots=of.roots)
            text = f"{of.text}[{key.obj!r}]"
            return (
                self._look(found, text, node.lineno)
                if not self._judge.is_held(of.obj)
                else Value(found, text, of.roots)
            )
        return self._part_of(self._opened(of))

    def _of_Attribute(self, node: ast.Attribute, scope: Scope) -> Value:
        return self._attribute(self.value(node.value, scope), node.attr, node.lineno)

    def _attribute(self, of: Value, name: str, line: int) -> Value:
        if of.is_new:
            if of.kind is not None and isinstance(static := inspect.getattr_static(of.kind, name, None), property):
                return self.call(static.fget, [of], {}) if isinstance(static.fget, FunctionType) else Value()
            return Value(text=of.text, roots=of.roots, is_ours=of.is_ours)
        place, text = ("a", id(of.obj), name), f"{of.text}.{name}" if of.text else name
        if self._env is not None and place in self._env:
            return self._env[place]
        static = inspect.getattr_static(type(of.obj), name, None)
        if isinstance(static, property) and isinstance(static.fget, FunctionType) and is_own(static.fget):
            return self.call(static.fget, [of], {})
        self.reads.setdefault(place, Seen(text, self._file, line))
        known = attribute_of(of.obj, name, static)
        if known is NEW:
            for hook in ("__getattr__", "__getattribute__", "__get__"):
                on = static if hook == "__get__" else of.obj
                if isinstance(function := inspect.getattr_static(type(on), hook, None), FunctionType):
                    return self.call(
                        function, [of if on is of.obj else Value(on, text, ((text, on),)), Value(name)], {}
                    )
            return Value(roots=of.roots, is_ours=self._judge.is_held(of.obj))
        return self._look(known, text, line)
