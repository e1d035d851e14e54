"""What a loop over steps leaves behind for the script: `step` itself, the last `loss`.

A run that resumes at the end of that loop has not been in it, so such names would be missing.
"""

from __future__ import annotations

import ast
import ctypes
import functools
from collections.abc import Iterator
from inspect import CO_GENERATOR
from types import CodeType, FrameType
from typing import Any, NamedTuple

from samebits.rank.checks.script.source import functions_in, tree
from samebits.rank.checks.script_objects import script_frames

Loop = ast.For | ast.While


class Left(NamedTuple):
    """What one loop leaves behind."""

    names: list[str]
    """Names that it assigns and that the script reads first, in some line behind it."""
    own: frozenset[str]
    """The variables of the loop itself."""


NOTHING = Left([], frozenset())


def left_variables() -> list[tuple[FrameType, Left]]:
    """The frames of the script whose innermost loop asks the caller for its next turn, and what that loop leaves."""
    found = []
    for frame in script_frames():
        left = _left_around(frame.f_code, frame.f_lineno)
        if left is not None:
            found.append((frame, left))
            # The loop that asks a generator for its next turn is in its caller.
            if not frame.f_code.co_flags & CO_GENERATOR:
                break
    return found


@functools.lru_cache(256)
def _left_around(code: CodeType, line: int) -> Left | None:
    """What the innermost loop around the line leaves; None without one."""
    scope = _scope(code.co_filename, code)
    loops = [one for one in ast.walk(scope) if isinstance(one, ast.For) and _is_around(one, line)]
    if not loops:
        return None
    loop = max(loops, key=lambda one: one.lineno)
    names = left_by(loop, scope)
    own = frozenset(one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name))
    return Left(names, own) if names else NOTHING


def variable(frame: FrameType, name: str, missing: Any) -> Any:
    """The value of a variable as the frame's code would read it, or `missing`."""
    return frame.f_locals.get(name, frame.f_globals.get(name, missing))


def set_variable(frame: FrameType, name: str, value: Any) -> None:
    """Assign a variable for the frame's code, as debuggers do."""
    code = frame.f_code
    if name in {*code.co_varnames, *code.co_cellvars, *code.co_freevars}:
        frame.f_locals[name] = value
        # Up to Python 3.12, `f_locals` is a copy that has to be written back.
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    else:
        frame.f_globals[name] = value


def left_by(loop: ast.For, scope: ast.AST) -> list[str]:
    """The same of one loop; `scope` is the function that it is in, or the file."""
    inside = set(_bound_by(loop))
    last = loop.end_lineno or loop.lineno
    first: dict[str, bool] = {}
    for name in _in_order(scope):
        if name.lineno > last:
            first.setdefault(name.id, isinstance(name.ctx, ast.Load))
    return [name for name, is_read in first.items() if is_read and name in inside]


def _bound_by(loop: ast.For) -> Iterator[str]:
    for one in ast.walk(loop):
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            yield one.id
        elif isinstance(one, (ast.FunctionDef, ast.ClassDef)):
            yield one.name
        elif isinstance(one, ast.alias):
            yield (one.asname or one.name).partition(".")[0]


def _is_around(loop: Loop, line: int) -> bool:
    return loop.lineno <= line <= (loop.end_lineno or 0)


def _scope(file: str, code: CodeType) -> ast.AST:
    return next(iter(functions_in(file).get((code.co_name, code.co_firstlineno), ())), tree(file))


def _in_order(node: ast.AST) -> Iterator[ast.Name]:
    """Names as they are evaluated: what is assigned comes after what it is made of."""
    if isinstance(node, ast.Name):
        yield node
        return
    fields = list(ast.iter_child_nodes(node))
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.For, ast.comprehension, ast.NamedExpr)):
        source = node.iter if isinstance(node, (ast.For, ast.comprehension)) else node.value
        fields = [*([source] if source is not None else []), *(one for one in fields if one is not source)]
    elif isinstance(node, ast.AugAssign):
        yield from (ast.copy_location(ast.Name(one.id, ast.Load()), one) for one in _in_order(node.target))
    elif isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
        fields = [*node.generators, *(one for one in fields if one not in node.generators)]
    for field in fields:
        yield from _in_order(field)
