"""The statements of a turn, each on the ways on which it is reached."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Sequence
from types import FunctionType
from typing import Any

from torch import nn

from lockstep.run.script.objects import (
    holds,
    length,
)
from lockstep.run.script.places import Places
from lockstep.run.script.source import bound_in, loaded
from lockstep.run.script.values import Scope, Seen, Value, meet


class Statements(Places):
    """Assigns, branches and loops."""

    def block(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        for statement in body:
            if self._env is None:
                return
            way = getattr(self, f"_on_{type(statement).__name__}", None)
            if way is not None:
                way(statement, scope)
            else:
                for child in ast.iter_child_nodes(statement):
                    self.value(child, scope)

    def _on_If(self, node: ast.If, scope: Scope) -> None:
        self.value(node.test, scope)
        self._ways(lambda: self.block(node.body, scope), lambda: self.block(node.orelse, scope))

    def _on_For(self, node: ast.For, scope: Scope) -> None:
        """A loop in the turn; it has a turn itself, unless it is over something empty."""
        of = self.value(node.iter, scope)
        if self._before_lanes is None and not self._stack:
            self._before_lanes = set(self._env or {})
        has_none = hasattr(type(of.obj), "__len__") and not isinstance(of.obj, type) and length(of.obj) == 0
        self._bind(node.target, Value(roots=of.roots, is_ours=of.is_ours), scope)
        self._loop(node, scope, may_be_left_out=has_none)

    _on_AsyncFor = _on_For

    def _on_While(self, node: ast.While, scope: Scope) -> None:
        self.value(node.test, scope)
        self._loop(node, scope, may_be_left_out=not isinstance(node.test, ast.Constant))

    def _loop(self, node: ast.For | ast.While, scope: Scope, *, may_be_left_out: bool) -> None:
        before = dict(self._env or {})
        self._ends.append([])
        self.block(node.body, scope)
        self._env = meet([self._env, *self._ends.pop(), *([before] if may_be_left_out else [])])
        self.block(node.orelse, scope)

    def _on_Break(self, _node: ast.stmt, _scope: Scope) -> None:
        if self._env is not None:
            self._ends[-1].append(self._env)
        self._env = None

    _on_Continue = _on_Break

    def _on_Return(self, node: ast.Return, scope: Scope) -> None:
        values, ends = self._results[-1]
        values.append(self.value(node.value, scope) if node.value is not None else Value())
        if self._env is not None:
            ends.append(self._env)
        self._env = None

    def _on_Raise(self, node: ast.Raise, scope: Scope) -> None:
        if node.exc is not None:
            self.value(node.exc, scope)
        self._env = None

    def _on_With(self, node: ast.With, scope: Scope) -> None:
        for item in node.items:
            value = self._opened(self.value(item.context_expr, scope))
            if item.optional_vars is not None:
                self._bind(item.optional_vars, Value(roots=value.roots, kind=value.kind), scope)
        self.block(node.body, scope)

    _on_AsyncWith = _on_With

    def _on_Try(self, node: ast.Try, scope: Scope) -> None:
        def body() -> None:
            self.block([*node.body, *node.orelse], scope)

        def caught(handler: ast.ExceptHandler) -> None:
            if handler.name:
                self._set(self._find(handler.name, scope)[0], Value())
            self.block(handler.body, scope)

        self._ways(body, *(functools.partial(caught, one) for one in node.handlers))
        self.block(node.finalbody, scope)

    _on_TryStar = _on_Try

    def _on_Match(self, node: ast.Match, scope: Scope) -> None:
        of = self.value(node.subject, scope)

        def case(one: ast.match_case) -> None:
            for part in ast.walk(one.pattern):
                if name := getattr(part, "name", None) or getattr(part, "rest", None):
                    self._set(self._find(str(name), scope)[0], Value(roots=of.roots))
            if one.guard is not None:
                self.value(one.guard, scope)
            self.block(one.body, scope)

        self._ways(*(functools.partial(case, one) for one in node.cases), lambda: None)

    def _on_FunctionDef(self, node: Any, scope: Scope) -> None:
        for one in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.value(one, scope)
        self.closure(node, scope)
        self._bind(ast.Name(node.name, ast.Store(), lineno=node.lineno), Value(), scope)

    _on_AsyncFunctionDef = _on_FunctionDef

    def _on_ClassDef(self, node: ast.ClassDef, scope: Scope) -> None:
        inner = Scope(next(self._keys), bound_in(node), {}, scope.around, scope.file, outer=scope)
        self.block(node.body, inner)
        self._bind(ast.Name(node.name, ast.Store(), lineno=node.lineno), Value(), scope)

    def _on_Import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        for one in node.names:
            place, known, _ = self._find((one.asname or one.name).partition(".")[0], scope)
            self._set(place, Value(known))

    _on_ImportFrom = _on_Import

    def _on_Assign(self, node: ast.Assign, scope: Scope) -> None:
        value = self.value(node.value, scope)
        for target in node.targets:
            self._bind(target, value, scope, node.value)

    def _on_AnnAssign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self._bind(node.target, self.value(node.value, scope), scope)

    def _on_AugAssign(self, node: ast.AugAssign, scope: Scope) -> None:
        before = self.value(loaded(node.target), scope)
        more = self.value(node.value, scope)
        self._changes(Value(roots=before.roots), node.lineno)
        clock = before.is_clock or more.is_clock
        self._bind(node.target, Value(roots=before.roots, is_clock=clock), scope)

    def _on_Delete(self, node: ast.Delete, scope: Scope) -> None:
        for target in node.targets:
            if isinstance(target, ast.Name):
                if self._env is not None:
                    self._env.pop(self._find(target.id, scope)[0], None)
            else:
                self._bind(target, Value(), scope)

    def _bind(self, target: ast.AST, value: Value, scope: Scope, of: ast.AST | None = None) -> None:
        """Assign to what stands on the left."""
        if isinstance(target, ast.Name):
            place, _, outlives = self._find(target.id, scope)
            if outlives:
                self._store(place, value, target.id, target.lineno)
            else:
                self._set(place, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = of.elts if isinstance(of, (ast.Tuple, ast.List)) and len(of.elts) == len(target.elts) else None
            for number, one in enumerate(target.elts):
                own = self.value(parts[number], scope) if parts else self._part_of(value)
                self._bind(one, own, scope)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, value, scope)
        elif isinstance(target, ast.Attribute):
            self._set_attribute(self.value(target.value, scope), target.attr, value, target.lineno)
        elif isinstance(target, ast.Subscript):
            self.value(target.slice, scope)
            self._changes(self._opened(self.value(target.value, scope)), target.lineno)

    def _set_attribute(self, owner: Value, name: str, value: Value, line: int) -> None:
        if owner.is_new:
            if not owner.is_ours:
                self._changes(owner, line)
            if owner.kind is None and owner.text and not self.is_behind:
                self._judge.name("setter", owner.text, Seen(owner.text, self._file, line))
            return
        static = inspect.getattr_static(type(owner.obj), name, None)
        if isinstance(static, property) and isinstance(static.fset, FunctionType):
            self.call(static.fset, [owner, value], {})
        setter = inspect.getattr_static(type(owner.obj), "__setattr__", None)
        if isinstance(setter, FunctionType):
            self.call(setter, [owner, Value(name), value], {})
        if not self._judge.is_held(owner.obj) or (isinstance(owner.obj, nn.Module) and not holds(owner.obj, name)):
            self._store(("a", id(owner.obj), name), value, f"{owner.text}.{name}", line, owner.obj)
