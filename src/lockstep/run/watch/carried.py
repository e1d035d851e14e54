"""Variables that a script carries from one step or epoch to the next by itself: a new rank would not have them.

Found in the source of the loops around the call: a name that the loop's body reads before it assigns it (a running sum,
the best value so far), an attribute that it assigns, a container that it fills. `run.state` and tracked objects are part
of what a new rank gets.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from inspect import CO_GENERATOR
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
from torch import Tensor

from lockstep.run.watch.holdings import script_frames

FILLS = {"append", "extend", "insert", "add", "update", "setdefault", "appendleft", "pop", "popleft", "remove", "clear"}
"""Methods that change a container."""
CONTAINERS = (list, dict, set, deque, np.ndarray, Tensor)


def carried_variables(belongs: Callable[[Any], bool]) -> list[str]:
    """Names that the loops around the caller carry on; none where the source cannot be read.

    Args:
        belongs: whether an object is part of the state already.
    """
    found: dict[str, None] = {}
    for frame in script_frames():
        variables = {**frame.f_globals, **frame.f_locals}
        for loop in _loops(frame.f_code.co_filename, frame.f_lineno):
            found.update(dict.fromkeys(_carried(loop, variables, belongs)))
    return list(found)


def left_variables() -> list[str]:
    """Names that the innermost loop around the caller assigns, and that the script reads behind that loop.

    A new rank that goes on from the loop's end has not been in it: `step` itself, the last `loss`.
    """
    found: dict[str, None] = {}
    for frame in script_frames():
        file, code = frame.f_code.co_filename, frame.f_code
        loops = [loop for loop in _loops(file, frame.f_lineno) if isinstance(loop, ast.For)]
        if loops:
            found.update(dict.fromkeys(_left_by(loops[-1], _scope(file, code))))
            if not code.co_flags & CO_GENERATOR:  # else its caller has the loop
                break
    return list(found)


def _left_by(loop: ast.For, scope: list[ast.stmt]) -> Iterator[str]:
    inside = {*_names(loop.target), *(name for node in loop.body for name in _names(node, ast.Store))}
    end = loop.end_lineno or loop.lineno
    for node in _in_order(scope):
        if isinstance(node, ast.Name) and node.lineno > end and node.id in inside:
            if isinstance(node.ctx, ast.Load):
                yield node.id
            inside.discard(node.id)


def _scope(file: str, code: CodeType) -> list[ast.stmt]:
    """The statements of a function, or of a whole file."""
    tree = _tree(file)
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for function in functions:
        lines = {function.lineno, *(one.lineno for one in function.decorator_list)}
        if function.name == code.co_name and code.co_firstlineno in lines:
            return function.body
    return tree.body


def _tree(file: str) -> ast.Module:
    try:
        return ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


def _loops(file: str, line: int) -> Iterator[ast.For | ast.While]:
    """The loops of a file around a line, outermost first, without those of functions that the line is not in."""
    for node in ast.walk(_tree(file)):
        if isinstance(node, (ast.For, ast.While)) and node.lineno <= line <= (node.end_lineno or 0):
            yield node


def _carried(loop: ast.For | ast.While, variables: Mapping[str, Any], belongs: Callable[[Any], bool]) -> Iterator[str]:
    assigned = set(_names(loop.target)) if isinstance(loop, ast.For) else set()
    read: dict[str, None] = {}
    stored: set[str] = set()
    for node in _in_order(loop.body):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id not in assigned:
            yield node.target.id
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in assigned:
            read[node.id] = None
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            assigned.add(node.id)
            stored.add(node.id)
        elif isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            if (thing := _root(node)) is not None and thing not in assigned and not belongs(variables.get(thing)):
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FILLS:
            name = _root(node.func)
            if name is not None and name not in assigned and isinstance(variables.get(name), CONTAINERS):
                yield name
    yield from (name for name in read if name in stored and not callable(variables.get(name)))


def _in_order(nodes: list[ast.stmt]) -> Iterator[ast.AST]:
    """All nodes in the order in which they are evaluated, roughly: what is assigned comes after what it is made of."""
    for node in nodes:
        yield from _visit(node)


def _visit(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
        return
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.For)):
        first = node.iter if isinstance(node, ast.For) else node.value
        if first is not None:
            yield from _visit(first)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from _visit(target)
        for statement in node.body + node.orelse if isinstance(node, ast.For) else []:
            yield from _visit(statement)
        return
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        for generator in node.generators:
            yield from _visit(generator)
        elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for element in elements:
            yield from _visit(element)
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _visit(child)


def _names(target: ast.AST, context: type[ast.expr_context] = ast.expr_context) -> Iterator[str]:
    return (node.id for node in ast.walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, context))


def _root(node: ast.AST) -> str | None:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
