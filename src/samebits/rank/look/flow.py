"""Where names come from: which some statements may read before they have assigned them, whatever branch the code takes, and what
a step's body makes of those that its lanes assign.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterable, Sequence

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
SCOPES = (*FUNCTIONS, ast.ClassDef, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
Loop = ast.For | ast.AsyncFor | ast.While
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_ENDS = (ast.Return, ast.Raise, ast.Break, ast.Continue)
Names = frozenset[str]


class Flow:
    """Goes through statements once; a loop over something is taken to have a turn. Names up to the line `after` do not count."""

    def __init__(self, after: int = 0) -> None:
        self.exposed: set[str] = set()
        """Names that may be read before they are assigned."""
        self._after = after
        self._exits: list[list[Names]] = [[]]
        """What is assigned at each `break` and `continue` of the loops around."""

    def of_turn(self, body: Sequence[ast.AST], given: Names | None) -> Names:
        """What is assigned wherever a loop's turn ends."""
        return _both(self.through(body, given), *self._exits[-1]) or frozenset()

    def through(self, body: Iterable[ast.AST], given: Names | None) -> Names | None:
        """What is assigned behind these parts of the code; None where it never comes there."""
        for node in body:
            given = self._one(node, given) if given is not None else None
        return given

    def _one(self, node: ast.AST, given: Names) -> Names | None:
        if isinstance(node, (ast.If, ast.IfExp, ast.BoolOp)):
            first, *ways = [node.values[:1], node.values[1:], []] if isinstance(node, ast.BoolOp) else _ways(node)
            begun = self.through(first, given)
            return _both(*(self.through(way, begun) for way in ways))
        if isinstance(node, _LOOPS):
            return self._loop(node, given)
        if isinstance(node, ast.Try):
            done = self.through([*node.body, *node.orelse], given)
            return self.through(node.finalbody, _both(done, *(self.through([one], given) for one in node.handlers)))
        if isinstance(node, ast.Match):
            subject = self.through([node.subject], given)
            return _both(subject, *(self.through([one], subject) for one in node.cases))
        if isinstance(node, SCOPES):
            return self._inner(node, given)
        return self._name(node, given) if isinstance(node, ast.Name) else self._parts(node, given)

    def _name(self, node: ast.Name, given: Names) -> Names:
        if node.lineno <= self._after or isinstance(node.ctx, ast.Del):
            return given
        self.exposed |= {node.id} - given if isinstance(node.ctx, ast.Load) else set()
        return given | {node.id} if isinstance(node.ctx, ast.Store) else given

    def _parts(self, node: ast.AST, given: Names) -> Names | None:
        """What is assigned comes after what it is made of."""
        parts = [*ast.iter_child_nodes(node)]
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            parts = [node.value, *(one for one in parts if one is not node.value)]
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            parts = [ast.copy_location(ast.Name(node.target.id, ast.Load()), node.target), node.value, node.target]
        named = node.name if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) else None
        found = self.through(parts, given | ({named} if named else set()))
        if isinstance(node, (ast.Break, ast.Continue)):
            self._exits[-1].append(given)
        return None if isinstance(node, _ENDS) else found

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, given: Names) -> Names | None:
        begun = self.through([node.test] if isinstance(node, ast.While) else [node.iter, node.target], given)
        self._exits.append([])
        ends = [self.through(node.body, begun), *self._exits.pop()]
        may_pass = isinstance(node, ast.While) and not isinstance(node.test, ast.Constant)
        return self.through(node.orelse, _both(*ends, *([begun] if may_pass else [])))

    def _inner(self, node: ast.AST, given: Names) -> Names:
        """A function, a class or a comprehension reads what is around it, here or later, and its own names are its own."""
        nodes = [*ast.walk(node)]
        own = frozenset[str]().union(*(own_names(one) for one in nodes if isinstance(one, SCOPES)))
        self.exposed |= {
            one.id
            for one in nodes
            if isinstance(one, ast.Name) and one.lineno > self._after and one.id not in own | given
        }
        return given | {getattr(node, "name", "")}


def _ways(node: ast.If | ast.IfExp) -> list[Sequence[ast.AST]]:
    return [one if isinstance(one, list) else [one] for one in (node.test, node.body, node.orelse)]


def _both(*ends: Names | None) -> Names | None:
    """Behind several ways."""
    found = [one for one in ends if one is not None]
    return frozenset.intersection(*found) if found else None


def own_names(scope: ast.AST) -> Names:
    """Variables that are a function's own, or a comprehension's; not those of functions inside."""
    nodes, shared, found = [*ast.iter_child_nodes(scope)], set[str](), set[str]()
    for node in nodes:
        shared |= {*node.names} if isinstance(node, (ast.Global, ast.Nonlocal)) else set()
        is_stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        name = node.id if is_stored else getattr(node, "arg" if isinstance(node, ast.arg) else "name", "")  # type: ignore[attr-defined]
        found |= {name} if isinstance(name, str) and (is_stored or isinstance(node, (ast.arg, *SCOPES))) else set()
        nodes += [] if isinstance(node, SCOPES) else ast.iter_child_nodes(node)
    return frozenset(found - shared)


def loops_over_lanes(scope: ast.AST, inner: Loop) -> tuple[list[Loop], Sequence[ast.AST]]:
    """The loops over a step's lanes, of which `inner` is one, and the body of the loop over steps."""
    around = [one for one in ast.walk(scope) if isinstance(one, _LOOPS) and one is not inner and inner in ast.walk(one)]
    outer = max(around, key=lambda one: one.lineno, default=None)
    if not isinstance(outer, (ast.For, ast.AsyncFor)):
        return [], []
    steps = {one.id for one in ast.walk(outer.target) if isinstance(one, ast.Name)}
    found = [one for part in outer.body for one in ast.walk(part) if isinstance(one, (ast.For, ast.AsyncFor))]
    return [one for one in found if _mentions(one.iter, steps)], outer.body


def left_for_lanes(loops: Sequence[Loop], body: Sequence[ast.AST]) -> dict[str, int]:
    """What a step's body makes behind its loops over lanes of names that they assign, by the last name of the target; with its line.

    Behind the loop such a name is that of this rank's last lane. What comes back from a call of the run is of all ranks.
    """
    inside = {id(one) for loop in loops for one in ast.walk(loop)}
    stored = [one for loop in loops for one in ast.walk(loop) if isinstance(one, ast.Name)]
    tainted = {one.id: 0 for one in stored if isinstance(one.ctx, ast.Store)}
    for node in (part for one in body for part in ast.walk(one) if id(part) not in inside):
        if not isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) or node.value is None:
            continue
        is_behind = any(node.lineno > (loop.end_lineno or 0) for loop in loops)
        if not is_behind or _mentions(node.value, {"run"}) or not _mentions(node.value, tainted):
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
            tainted[name] = node.lineno
    return {name: line for name, line in tainted.items() if line and name}


def _mentions(node: ast.AST, names: Container[str]) -> bool:
    return any(isinstance(one, ast.Name) and one.id in names for one in ast.walk(node))
