"""One turn of a script's loop, read through its source on all ways that it may take."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Sequence
from typing import Any

from samebits.rank.checks.script.expressions import Expressions
from samebits.rank.checks.script.found import Found
from samebits.rank.checks.script.objects import NEW
from samebits.rank.checks.script.values import COUNT, Place, Scope, Value, joined, meet, mixed

Ends = list[dict[Place, Value] | None]


class Turn(Expressions):
    """Reads statements and expressions."""

    def __init__(self, found: Found, *, changing: frozenset[Place] = frozenset()) -> None:
        super().__init__(found, changing=changing)
        self._loop_ends: list[Ends] = []
        """Of each loop under way, what is assigned where the script leaves a turn early."""
        self._results: list[tuple[list[Value], Ends]] = []
        """Of each function under way, what it returns and what is assigned there."""

    def follow(
        self, loop: ast.For | ast.While, behind: Sequence[ast.stmt], scope: Scope, file: str
    ) -> frozenset[Place]:
        """Go through one turn of `loop` and what lies behind it, and name what is carried on; see `conclude`."""
        self.file = file
        self._results.append(([], []))
        of = self.value(loop.iter if isinstance(loop, ast.For) else loop.test, scope)
        self.matters(of)
        if isinstance(loop, ast.For):
            self._next(loop, of, scope)
            if counter := _counter(loop.iter, self.value, scope):
                self.read(COUNT, NEW, counter, loop.lineno)
                if counter == "enumerate":
                    self.bind(getattr(loop.target, "elts", [loop.target])[0], Value(of=frozenset({COUNT})), scope)
                else:
                    self.matters(Value(of=frozenset({COUNT})))
        self._turn_of(loop, scope)
        surely = set(self.env or {})
        self.end()
        self.control = frozenset()
        self._loop_ends.append([])
        self.block(behind, scope)
        return self.conclude(surely)

    def _turn_of(self, loop: ast.For | ast.While, scope: Scope) -> None:
        self._loop_ends.append([])
        self.block(loop.body, scope)
        self.env = meet([self.env, *self._loop_ends.pop()])

    def block(self, body: Sequence[ast.stmt], scope: Scope) -> None:
        for statement in body:
            if self.env is None:
                return
            self.found.spend()
            kind = type(statement).__name__.removeprefix("Async").removesuffix("Star")
            if (way := getattr(self, f"_on_{kind}", None)) is not None:
                way(statement, scope)
            elif parts := [self.value(one, scope) for one in ast.iter_child_nodes(statement)]:
                self.matters(*parts)

    def _on_Expr(self, node: ast.Expr, scope: Scope) -> None:
        self.is_act = False
        value = self.value(node.value, scope)
        if self.is_act or not isinstance(node.value, ast.Call):
            self.matters(value)

    def _on_If(self, node: ast.If, scope: Scope) -> None:
        before, test = self.control, self.value(node.test, scope)
        if (is_taken := self.folds_to(test)) is not None:
            self.block(node.body if is_taken else node.orelse, scope)
            return
        self.control |= test.of
        if self.ways(lambda: self.block(node.body, scope), lambda: self.block(node.orelse, scope)):
            # Where one way ends early, what follows depends on the test too.
            self.control = before

    def _on_For(self, node: ast.For, scope: Scope) -> None:
        """A loop in the turn. It has a turn itself, unless it is over something empty."""
        of = self.value(node.iter, scope)
        self.matters(self.opened([of], node.lineno))
        if self.before_lanes is None and not self.stack:
            self.before_lanes = set(self.env or {})
        is_empty = isinstance(of.obj, (list, tuple, dict, set)) and not of.obj
        self._inner(node, scope, of, may_have_none=is_empty)

    def _on_While(self, node: ast.While, scope: Scope) -> None:
        self._inner(node, scope, self.value(node.test, scope), may_have_none=not isinstance(node.test, ast.Constant))

    def _inner(self, node: ast.For | ast.While, scope: Scope, of: Value, *, may_have_none: bool) -> None:
        control, before, again = self.control, dict(self.env or {}), True
        self.control |= of.of
        # What one turn of the inner loop leaves may decide the next one.
        while again:
            early = {place: one.of for place, one in (self.env or {}).items()}
            if isinstance(node, ast.For):
                self._next(node, of, scope)
            self._turn_of(node, scope)
            later = {place: one.of - early[place] for place, one in (self.env or {}).items() if place in early}
            again = any(place[0] != "made" for more in later.values() for place in more)
        self.control = control
        self.env = meet([self.env, *([before] if may_have_none else [])])
        self.block(node.orelse, scope)

    def _next(self, loop: ast.For | ast.AsyncFor, of: Value, scope: Scope) -> None:
        """Assign what a turn of a loop gets; of several things in step, each its own."""
        self.bind(loop.target, of.part, scope)
        name = getattr(getattr(loop.iter, "func", None), "id", "")
        if isinstance(loop.iter, ast.Call) and isinstance(loop.target, ast.Tuple) and name in ("zip", "enumerate"):
            values = [self.value(one, scope).part for one in loop.iter.args]
            values = [Value(of=of.of), *values[:1]] if name == "enumerate" else values
            for target, value in zip(loop.target.elts, values, strict=False):
                self.bind(target, value, scope)

    def _on_Break(self, _node: ast.stmt, _scope: Scope) -> None:
        self.matters()
        self._loop_ends[-1].append(self.env)
        self.env = None

    def _on_Continue(self, _node: ast.stmt, _scope: Scope) -> None:
        self._loop_ends[-1].append(self.env)
        self.env = None

    def _on_Return(self, node: ast.Return, scope: Scope) -> None:
        value = self.value(node.value, scope)
        values, ends = self._results[-1]
        # What decided that the function returns here decides its value too.
        values.append(
            Value(
                value.obj,
                value.text,
                value.roots,
                value.of if value.is_held else value.of | self.control,
                value.is_held,
            )
        )
        ends.append(self.env)
        self.env = None

    def _on_Raise(self, node: ast.Raise, scope: Scope) -> None:
        self.matters(self.value(node.exc, scope))
        self.env = None

    def _on_With(self, node: ast.With, scope: Scope) -> None:
        for item in node.items:
            value = self.value(item.context_expr, scope)
            self.matters(self.opened([value], node.lineno))
            if item.optional_vars is not None:
                self.bind(item.optional_vars, mixed([value]), scope)
        self.block(node.body, scope)

    def _on_Try(self, node: ast.Try, scope: Scope) -> None:
        def caught(handler: ast.ExceptHandler) -> None:
            if handler.name:
                self.assign(scope.find(handler.name)[0], Value())
            self.block(handler.body, scope)

        self.ways(
            lambda: self.block([*node.body, *node.orelse], scope),
            *(functools.partial(caught, one) for one in node.handlers),
        )
        self.block(node.finalbody, scope)

    def _on_Match(self, node: ast.Match, scope: Scope) -> None:
        self.matters(self.value(node.subject, scope))
        self.ways(*(functools.partial(self.block, one.body, scope) for one in node.cases), lambda: None)

    def _on_FunctionDef(self, node: Any, scope: Scope) -> None:
        self.closure(node, scope)
        self.bind(ast.Name(node.name, ast.Store(), lineno=node.lineno), Value(), scope)

    _on_ClassDef = _on_FunctionDef

    def _on_Import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        of = sys.modules.get(getattr(node, "module", None) or "")
        for one in node.names:
            name = one.name if one.asname else one.name.partition(".")[0]
            known = getattr(of, one.name, NEW) if isinstance(node, ast.ImportFrom) else sys.modules.get(name, NEW)
            self.assign(scope.find(one.asname or name)[0], Value(known, name))

    _on_ImportFrom = _on_Import

    def _on_Assign(self, node: ast.Assign, scope: Scope) -> None:
        value = self.value(node.value, scope)
        for target in node.targets:
            self.bind(target, value, scope, node.value)

    def _on_AnnAssign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self.bind(node.target, self.value(node.value, scope), scope)

    def _on_AugAssign(self, node: ast.AugAssign, scope: Scope) -> None:
        before, more = self.value(node.target, scope), self.value(node.value, scope)
        self.change(before, node.lineno, more)
        self.bind(node.target, Value(roots=before.roots, of=before.of | more.of), scope)

    def _on_Delete(self, node: ast.Delete, scope: Scope) -> None:
        for target in node.targets:
            if not isinstance(target, ast.Name):
                self.bind(target, Value(), scope)

    def body(self, node: Any, scope: Scope) -> Value:
        control = self.control
        self._results.append(([], []))
        self._loop_ends.append([])
        if isinstance(node, ast.Lambda):
            self._results[-1][0].append(self.value(node.body, scope))
        else:
            self.block(node.body, scope)
        values, ends = self._results.pop()
        self._loop_ends.pop()
        self.env, self.control = meet([self.env, *ends]), control
        return joined(values) if values else Value()


def _counter(node: ast.AST, value: Any, scope: Scope) -> str:
    """What counts steps from outside: it begins at its beginning where a run resumes."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, (ast.Name, ast.Attribute)):
            is_around = any(isinstance(one, ast.Call) and getattr(one.func, "attr", "") == "steps" for one in call.args)
            counter = value(call.func, scope).obj if is_around else None
            if getattr(counter, "__module__", "") in ("builtins", "itertools"):
                return str(getattr(counter, "__name__", ""))
    return ""
