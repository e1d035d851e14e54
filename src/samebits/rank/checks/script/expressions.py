"""The expressions of a turn, and what is assigned to."""

from __future__ import annotations

import ast
import operator
from collections.abc import Sequence
from typing import Any

from samebits.rank.checks.script.calls import Calls
from samebits.rank.checks.script.objects import is_users
from samebits.rank.checks.script.source import bound_in
from samebits.rank.checks.script.values import Scope, Seen, Value, meet, mixed

MOST_NODES = 100_000
"""How many pieces of source are followed; a script of 1,000 lines has about 20,000."""
_NO_ALIAS = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.JoinedStr)


_CONSTANTS = (bool, int, float, str, type(None))
_COMPARES = {ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not}


class Expressions(Calls):
    """Reads them."""

    num_nodes = 0

    def value(self, node: ast.AST | None, scope: Scope) -> Value:
        """What an expression gives."""
        if node is None:
            return Value()
        self.num_nodes += 1
        if self.num_nodes > MOST_NODES:
            if self.num_nodes == MOST_NODES + 1:
                self.found.name("hidden", None, Seen("the loop", self.file, getattr(node, "lineno", 0)))
            return Value()
        way = getattr(self, f"_of_{type(node).__name__}", None)
        if way is not None:
            found: Value = way(node, scope)
            return found
        parts = [self.value(one, scope) for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
        more = self.opened(parts, getattr(node, "lineno", 0))
        if isinstance(node, (ast.List, ast.Tuple, ast.Set, ast.Dict)):
            return self.made([*parts, more])
        if isinstance(node, (ast.BoolOp, ast.Compare, ast.UnaryOp)) and (known := _outcome(node, parts)) is not None:
            return known
        some = mixed([*parts, more])
        return self.made([Value(of=some.of)]) if isinstance(node, _NO_ALIAS) else some

    def folds_to(self, test: Value) -> bool | None:
        """What a test comes to by what was there before the turn, which then must stay as it is; None if it may change."""
        if type(test.obj) not in _CONSTANTS or test.of & self.changing:
            return None
        self.folded |= test.of
        return bool(test.obj)

    def _of_Constant(self, node: ast.Constant, _scope: Scope) -> Value:
        return Value(node.value)

    def _of_Name(self, node: ast.Name, scope: Scope) -> Value:
        return self.name(node.id, scope, node.lineno)

    def _of_Attribute(self, node: ast.Attribute, scope: Scope) -> Value:
        return self.attribute(self.owner(node.value, scope), node.attr, node.lineno)

    def owner(self, node: ast.AST, scope: Scope) -> Value:
        """Something of which an attribute is read: that alone changes nothing."""
        self.looks, before = self.looks and not isinstance(node, (ast.Name, ast.Attribute)), self.looks
        value = self.value(node, scope)
        self.looks = before
        return value

    def _of_NamedExpr(self, node: ast.NamedExpr, scope: Scope) -> Value:
        value = self.value(node.value, scope)
        self.bind(node.target, value, scope)
        return value

    def _of_Subscript(self, node: ast.Subscript, scope: Scope) -> Value:
        of, key = self.value(node.value, scope), self.value(node.slice, scope)
        self.opened([key], node.lineno)
        is_plain = isinstance(of.obj, (list, tuple, dict)) and not hasattr(type(of.obj), "__missing__")
        if is_plain and not key.is_new and not is_users(type(of.obj)):
            try:
                found = of.obj[key.obj]
            except (LookupError, TypeError):
                return of.part
            value = self.look(found, f"{of.text}[{key.obj!r}]", node.lineno)
            return Value(value.obj, value.text, (*value.roots, *of.roots), value.of | of.of)
        more = self.opened([of], node.lineno)
        return Value(roots=of.part.roots, of=of.part.of | key.of | more.of)

    def closure(self, node: Any, scope: Scope) -> Value:
        """A function or class that is made in the turn: it is read where it is made, as if it were called there."""
        inner = Scope(next(self.keys), bound_in(node), scope.around, outer=scope)
        if not isinstance(node, ast.ClassDef):
            for default in (*node.args.defaults, *node.args.kw_defaults):
                self.value(default, scope)
            for one in ast.walk(node.args):
                if isinstance(one, ast.arg):
                    self.assign(("variable", inner.key, one.arg), Value())
        before = dict(self.env) if self.env is not None else None
        self.matters(self.body(node, inner))
        self.env = meet([self.env, before])
        for one in getattr(node, "decorator_list", ()):
            self.called(self.value(one, scope), [Value()], {}, node.lineno)
        if isinstance(node, ast.ClassDef):
            self._class(node, scope)
        return Value()

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        """What is called where a class is made: its metaclass, and by name what its bases and attributes may have."""
        for one in node.keywords:
            self.called(self.value(one.value, scope), [Value()], {}, node.lineno)
        for name in ("__init_subclass__", "__set_name__"):
            self.method_of_new(Value(), name, [], {}, node.lineno)

    _of_Lambda = closure

    def _of_ListComp(self, node: Any, scope: Scope) -> Value:
        inner = Scope(next(self.keys), bound_in(node), scope.around, outer=scope)
        parts = []
        for one in node.generators:
            of = self.value(one.iter, inner)
            parts.append(self.opened([of], node.lineno))
            self.bind(one.target, of.part, inner)
            parts += [of, *(self.value(test, inner) for test in one.ifs)]
        elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        return self.made([*parts, *(self.value(one, inner) for one in elements)])

    _of_SetComp = _of_DictComp = _of_GeneratorExp = _of_ListComp

    def _of_Call(self, node: ast.Call, scope: Scope) -> Value:
        if isinstance(node.func, ast.Attribute):
            owner = self.owner(node.func.value, scope)
            function = Value() if owner.is_new else self.attribute(owner, node.func.attr, node.lineno)
            args, named = self._arguments(node, scope)
            if function.is_new:
                return self.method_of_new(owner, node.func.attr, args, named, node.lineno)
            return self.called(function, args, named, node.lineno)
        function = self.value(node.func, scope)
        return self.called(function, *self._arguments(node, scope), node.lineno)

    def _arguments(self, node: ast.Call, scope: Scope) -> tuple[list[Value], dict[str, Value]]:
        args: list[Value] = []
        for one in node.args:
            value = self.value(one.value if isinstance(one, ast.Starred) else one, scope)
            if isinstance(one, ast.Starred) and isinstance(value.obj, (tuple, list)):
                args += [self.look(part, value.text, node.lineno) for part in value.obj]
            else:
                args.append(value)
        return args, {one.arg or "**": self.value(one.value, scope) for one in node.keywords}

    def bind(self, target: ast.AST, value: Value, scope: Scope, of: ast.AST | None = None) -> None:
        """Assign to what stands on the left; `of`: what stands on the right."""
        if isinstance(target, ast.Name):
            place, _, outlives = scope.find(target.id)
            if outlives:
                self.store(place, value, target.id, target.lineno)
            else:
                self.assign(place, value)
        elif isinstance(target, (ast.Tuple, ast.List)):
            elements = of.elts if isinstance(of, (ast.Tuple, ast.List)) and len(of.elts) == len(target.elts) else None
            values = [self.value(one, scope) for one in elements] if elements else [value.part] * len(target.elts)
            for one, part in zip(target.elts, values, strict=True):
                self.bind(one, part, scope)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, value, scope)
        elif isinstance(target, ast.Attribute):
            self.set_attribute(self.value(target.value, scope), target.attr, value, target.lineno)
        elif isinstance(target, ast.Subscript):
            owner, key = self.value(target.value, scope), self.value(target.slice, scope)
            self.opened([owner], target.lineno)
            self.change(owner, target.lineno, value, key)


def _outcome(node: ast.AST, parts: Sequence[Value]) -> Value | None:
    """What a test gives, if that is known: `not args.quick`, `args.quick and epoch > 3`, `args.model == "lstm"`."""
    known = [one for one in parts if type(one.obj) in _CONSTANTS]
    if isinstance(node, ast.BoolOp):
        ends = isinstance(node.op, ast.Or)
        decisive = [one for one in known if bool(one.obj) is ends]
        return decisive[0] if decisive else known[-1] if len(known) == len(parts) else None
    some = mixed(parts)
    if isinstance(node, ast.UnaryOp):
        return Value(not known[0].obj, of=some.of) if known and isinstance(node.op, ast.Not) else None
    if not isinstance(node, ast.Compare) or len(parts) > 2 or type(node.ops[0]) not in _COMPARES:
        return None
    if any(one.is_new for one in parts) or (len(known) < 2 and isinstance(node.ops[0], (ast.Eq, ast.NotEq))):
        return None
    return Value(bool(_COMPARES[type(node.ops[0])](parts[0].obj, parts[1].obj)), of=some.of)
