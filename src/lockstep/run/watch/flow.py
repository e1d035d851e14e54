"""In which order a piece of Python reads and assigns names, by its source: what the next turn of a loop takes from the last.

Readers(statements)      which names functions and methods read that they do not assign themselves, as they call each other
Flow(readers).run(body)  read:    names that are read where not every way to there has assigned them
stored:  names that are assigned somewhere
written: attributes, items and containers that are changed
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

FILLS = {"append", "extend", "insert", "add", "update", "setdefault", "appendleft", "extendleft", "rotate"}
FILLS |= {
    "pop",
    "popleft",
    "popitem",
    "remove",
    "discard",
    "clear",
    "sort",
    "reverse",
    "put",
    "push",
    "fill",
    "subtract",
}
"""Methods that change a container; those of tensors end with an underscore."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_ENDS = (ast.Return, ast.Raise, ast.Continue, ast.Break)
CALLED = ("__call__", "forward")
"""Methods that run when an object is called."""
ITERATED = ("__iter__", "__next__", "__getitem__", "__getitems__")
"""Methods that run when one is looped over, by itself or by a loader."""

_UNCOUNTED = ("vector_to_parameters", "untyped_storage")

Assigned = frozenset[str]


def fills(method: str) -> bool:
    """Whether a method of that name changes what it is called on."""
    return method in FILLS or (method.endswith("_") and not method.startswith("_"))


def root(node: ast.AST) -> str | None:
    """`a` of `a.b[0].c`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def names_in(node: ast.AST, context: type[ast.expr_context] = ast.expr_context) -> Iterator[str]:
    """The names in a piece of source that are read, assigned, or both."""
    return (one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, context))


def accumulated(tree: ast.AST) -> Iterator[str]:
    """The names and attributes that some statement makes from themselves."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.AugAssign, ast.Assign)):
            made_of = {(type(one), _last(one)) for one in ast.walk(node.value)}
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for one in ast.walk(target):
                    if (name := _last(one)) and (isinstance(node, ast.AugAssign) or (type(one), name) in made_of):
                        yield name


def writes_uncounted(tree: ast.AST) -> bool:
    """Whether some statement may write to a tensor past its counter of writes: `p.data.mul_(2)`, `p.data = other`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "data":
            if isinstance(node.ctx, ast.Store):
                return True
        elif (
            (isinstance(node, ast.Name) and node.id in _UNCOUNTED)
            or (
                isinstance(node, ast.Attribute)
                and (node.attr in _UNCOUNTED or (fills(node.attr) and _is_data(node.value)))
            )
            or (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) and _is_data(node.value))
            or (isinstance(node, ast.Assign) and _is_data(node.value))
        ):
            return True
    return False


def _is_data(node: ast.AST) -> bool:
    while isinstance(node, ast.Subscript):
        node = node.value
    return isinstance(node, ast.Attribute) and node.attr == "data" and _last(node.value) != "utils"


def _last(node: ast.AST) -> str:
    """`c` of `a.b.c`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


class Readers:
    """Which names the functions and methods in some statements read that belong to where these statements are.

    Args:
        statements: of a module, or of a function's body.
    """

    def __init__(self, statements: Sequence[ast.stmt]) -> None:
        self._free: dict[str, set[str]] = {}
        self._nodes: dict[str, list[ast.AST]] = {}
        self._methods: set[str] = set()
        self._functions: set[str] = set()
        for one in statements:
            self._collect(one, in_class=False)
        self._close()

    def of_function(self, name: str) -> set[str]:
        """What a call of a function or class by its name reads."""
        return self._free[name] if name in self._functions else set()

    def of_method(self, name: str) -> set[str]:
        """What a call of a method by its name reads, of whichever class it is."""
        return self._free[name] if name in self._methods else set()

    def _collect(self, node: ast.AST, *, in_class: bool) -> None:
        named: list[tuple[str, ast.AST]] = []
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            named.append((node.name, node))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Lambda):
            named += [(one.id, node.value) for one in node.targets if isinstance(one, ast.Name)]
        for name, function in named:
            self._free.setdefault(name, set()).update(free_names(function))
            self._nodes.setdefault(name, []).append(function)
            (self._methods if in_class else self._functions).add(name)
        if not isinstance(node, _FUNCTIONS):
            for child in ast.iter_child_nodes(node):
                self._collect(child, in_class=isinstance(node, ast.ClassDef))

    def of_calls_in(self, function: ast.AST) -> set[str]:
        """What the functions and methods read that another one names."""
        return set().union(*map(self.of_function, free_names(function)), *map(self.of_method, _attributes(function)))

    def _close(self) -> None:
        """Let who calls a function read what that reads."""
        grows = True
        while grows:
            grows = False
            for name, functions in self._nodes.items():
                more = set().union(*map(self.of_calls_in, functions)) - self._free[name]
                grows = grows or bool(more)
                self._free[name] |= more


def free_names(function: ast.AST) -> set[str]:
    """The names that a function, or one inside it, reads and does not assign itself."""
    if isinstance(function, ast.Lambda):
        body: list[ast.AST] = [function.body]
    else:
        assert isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        body = [*function.body]
    outer = {
        name
        for node in body
        for one in ast.walk(node)
        if isinstance(one, (ast.Global, ast.Nonlocal))
        for name in one.names
    }
    arguments = function.args
    bound = {one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    bound |= {one.arg for one in (arguments.vararg, arguments.kwarg) if one is not None}
    read: set[str] = set()
    for node in body:
        for one in _own_nodes(node):
            if isinstance(one, ast.Name):
                (read if isinstance(one.ctx, ast.Load) else bound).add(one.id)
            elif isinstance(one, _FUNCTIONS):
                read |= free_names(one)
                if not isinstance(one, ast.Lambda):
                    bound.add(one.name)
    return read - (bound - outer)


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """A node and what is in it, without the insides of functions."""
    yield node
    if not isinstance(node, _FUNCTIONS):
        for child in ast.iter_child_nodes(node):
            yield from _own_nodes(child)


def _attributes(function: ast.AST) -> set[str]:
    return {one.attr for one in ast.walk(function) if isinstance(one, ast.Attribute)}


class Flow:
    """What happens to names in a piece of source, way by way. A loop over an outer one's variable (`step`) has turns; others may have none.

    Args:
        readers: functions around it.
        is_object: whether a name is that of an object, whose class may be the script's; its call runs `forward`.
    """

    def __init__(self, readers: Readers, is_object: Callable[[str], bool]) -> None:
        self._readers, self._is_object = readers, is_object
        self._targets: set[str] = set()
        self.read: dict[str, None] = {}
        self.stored: set[str] = set()
        self.written: dict[str, str] = {}
        """The text of what is changed, and the name that leads to it, which was not assigned before."""
        self.filled: dict[str, None] = {}
        """Names on which a method is called that may fill a container."""
        self._ways: dict[type[ast.AST], Callable[[Any, Assigned], Assigned | None]] = {
            ast.If: self._if,
            ast.While: self._while,
            **dict.fromkeys((ast.For, ast.AsyncFor), self._for),
            **dict.fromkeys((ast.With, ast.AsyncWith), self._with),
            **dict.fromkeys((ast.Try, ast.TryStar), self._try),
            ast.Match: self._match,
        }
        self._parts: dict[type[ast.AST], Callable[[Any, Assigned], Assigned]] = {
            ast.Name: self._name,
            **dict.fromkeys((ast.Assign, ast.AnnAssign, ast.NamedExpr), self._assignment),
            ast.AugAssign: self._in_place,
            **dict.fromkeys(_FUNCTIONS, self._function),
            **dict.fromkeys((ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp), self._comprehension),
            **dict.fromkeys((ast.Import, ast.ImportFrom), self._import),
            **dict.fromkeys((ast.Attribute, ast.Subscript), self._member),
            ast.Call: self._call,
        }

    def turn(self, loop: ast.For | ast.While) -> None:
        """Go through one turn of a loop."""
        self._targets.update(names_in(loop.target) if isinstance(loop, ast.For) else ())
        self.run(loop.body, frozenset(self._targets))

    def run(self, body: Iterable[ast.stmt], assigned: Assigned) -> Assigned | None:
        """Go through statements; return what is assigned behind them, None where nothing comes there."""
        for statement in body:
            after = self._statement(statement, assigned)
            if after is None:
                return None
            assigned = after
        return assigned

    def _statement(self, node: ast.stmt, assigned: Assigned) -> Assigned | None:
        if (way := self._ways.get(type(node))) is not None:
            found: Assigned | None = way(node, assigned)
            return found
        after = self._expression(node, assigned)
        return None if isinstance(node, _ENDS) else after

    def _if(self, node: ast.If, assigned: Assigned) -> Assigned | None:
        before = self._expression(node.test, assigned)
        return _join(self.run(node.body, before), self.run(node.orelse, before))

    def _while(self, node: ast.While, assigned: Assigned) -> Assigned | None:
        before = self._expression(node.test, assigned)
        after = self.run(node.body, before)
        return (after or before) if isinstance(node.test, ast.Constant) else self.run(node.orelse, before)

    def _with(self, node: ast.With | ast.AsyncWith, assigned: Assigned) -> Assigned | None:
        for item in node.items:
            assigned = self._expression(item.context_expr, assigned)
            if item.optional_vars is not None:
                assigned = self._expression(item.optional_vars, assigned)
        return self.run(node.body, assigned)

    def _for(self, node: ast.For | ast.AsyncFor, assigned: Assigned) -> Assigned | None:
        before = self._expression(node.iter, assigned)
        self._reads(*(name for method in ITERATED for name in self._readers.of_method(method)), assigned=before)
        turns = self._has_turns(node.iter)
        self._targets.update(names_in(node.target))
        inside = self._expression(node.target, before)
        after = self.run(node.body, inside)
        return self.run(node.orelse, (after or inside) if turns else before)

    def _has_turns(self, of: ast.AST) -> bool:
        """Whether a loop over it surely has a turn: over literals, or over what an outer loop gave, such as a step."""
        if isinstance(of, ast.Call) and isinstance(of.func, ast.Name) and of.args:
            over = of.args[0]  # of enumerate, zip, tqdm
            return self._has_turns(over) and (of.func.id != "range" or isinstance(over, ast.Constant))
        is_number = isinstance(of, ast.Constant) and bool(of.value)
        return is_number or bool(getattr(of, "elts", ())) or (isinstance(of, ast.Name) and of.id in self._targets)

    def _try(self, node: ast.Try | ast.TryStar, assigned: Assigned) -> Assigned | None:
        after = self.run(node.body, assigned)
        if after is not None:
            after = self.run(node.orelse, after)
        for handler in node.handlers:
            if handler.type is not None:
                self._expression(handler.type, assigned)
            caught = assigned | {handler.name} if handler.name else assigned
            self.stored |= {handler.name} if handler.name else set()
            after = _join(after, self.run(handler.body, caught))
        last = self.run(node.finalbody, assigned)
        return None if after is None or last is None else after | last

    def _match(self, node: ast.Match, assigned: Assigned) -> Assigned | None:
        before, after, is_whole = self._expression(node.subject, assigned), None, False
        for case in node.cases:
            names = {
                str(name)
                for one in ast.walk(case.pattern)
                for name in (getattr(one, "name", None), getattr(one, "rest", None))
                if name
            }
            self.stored |= names
            inside = before | names
            if case.guard is not None:
                inside = self._expression(case.guard, inside)
            after = _join(after, self.run(case.body, inside))
            is_whole = is_whole or (
                case.guard is None and isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None
            )
        return after if is_whole else _join(after, before)

    def _expression(self, node: ast.AST, assigned: Assigned) -> Assigned:
        """Anything that is evaluated from its first part to its last."""
        if (part := self._parts.get(type(node))) is not None:
            found: Assigned = part(node, assigned)
            return found
        for child in ast.iter_child_nodes(node):
            assigned = self._expression(child, assigned)
        return assigned

    def _assignment(self, node: ast.Assign | ast.AnnAssign | ast.NamedExpr, assigned: Assigned) -> Assigned:
        if node.value is not None:
            assigned = self._expression(node.value, assigned)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                assigned = self._expression(target, assigned)
        return assigned

    def _in_place(self, node: ast.AugAssign, assigned: Assigned) -> Assigned:
        assigned = self._expression(node.value, assigned)
        if isinstance(node.target, ast.Name):
            self._reads(node.target.id, assigned=assigned)
        return self._expression(node.target, assigned)

    def _function(self, node: ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef, assigned: Assigned) -> Assigned:
        """One that is made in the loop: it reads when it is made, as it is called there."""
        self._reads(*sorted(free_names(node)), assigned=assigned)
        self._reads(*sorted(self._readers.of_calls_in(node)), assigned=assigned)
        return assigned if isinstance(node, ast.Lambda) else self._assign(node.name, assigned)

    def _import(self, node: ast.Import | ast.ImportFrom, assigned: Assigned) -> Assigned:
        return assigned | {(one.asname or one.name).partition(".")[0] for one in node.names}

    def _member(self, node: ast.Attribute | ast.Subscript, assigned: Assigned) -> Assigned:
        if isinstance(node.ctx, ast.Load):
            names = self._readers.of_method(node.attr) if isinstance(node, ast.Attribute) else ()
            self._reads(*names, assigned=assigned)
        else:
            name = root(node)
            if name is None or name not in assigned:
                self.written.setdefault(ast.unparse(node), name or "")
        for child in ast.iter_child_nodes(node):
            assigned = self._expression(child, assigned)
        return assigned

    def _name(self, node: ast.Name, assigned: Assigned) -> Assigned:
        if isinstance(node.ctx, ast.Load):
            self._reads(node.id, *self._readers.of_function(node.id), assigned=assigned)
            return assigned
        return self._assign(node.id, assigned) if isinstance(node.ctx, ast.Store) else assigned - {node.id}

    def _call(self, node: ast.Call, assigned: Assigned) -> Assigned:
        for child in ast.iter_child_nodes(node):
            assigned = self._expression(child, assigned)
        if isinstance(node.func, ast.Name) and self._is_object(node.func.id):
            self._reads(*(name for method in CALLED for name in self._readers.of_method(method)), assigned=assigned)
        if isinstance(node.func, ast.Attribute) and fills(node.func.attr):
            name = root(node.func)
            if name is not None and name not in assigned:
                self.filled[name] = None
        return assigned

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp, assigned: Assigned
    ) -> Assigned:
        inside = assigned
        for one in node.generators:
            inside = self._expression(one.iter, inside) | set(names_in(one.target))
            for condition in one.ifs:
                inside = self._expression(condition, inside)
        for element in [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]:
            inside = self._expression(element, inside)
        return assigned

    def _assign(self, name: str, assigned: Assigned) -> Assigned:
        self.stored.add(name)
        return assigned | {name}

    def _reads(self, *names: str, assigned: Assigned) -> None:
        self.read.update(dict.fromkeys(name for name in names if name not in assigned))


def _join(one: Assigned | None, other: Assigned | None) -> Assigned | None:
    """What both ways have assigned."""
    if one is None or other is None:
        return other if one is None else one
    return one & other
