"""What a loop over steps leaves behind for the script: `step` itself, the last `loss`.

A run that resumes at the end of that loop has not been in it, so such names would be missing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from inspect import CO_GENERATOR
from types import CodeType

from lockstep.run.script.source import functions_in, tree
from lockstep.run.watch.holdings import script_frames

Loop = ast.For | ast.While


def left_variables() -> list[str]:
    """Names that the innermost loop around the caller assigns, and that the script reads first, in some line behind it."""
    found: dict[str, None] = {}
    for frame in script_frames():
        file, code = frame.f_code.co_filename, frame.f_code
        scope = _scope(file, code)
        loops = [one for one in ast.walk(scope) if isinstance(one, ast.For) and _is_around(one, frame.f_lineno)]
        if loops:
            found.update(dict.fromkeys(left_by(max(loops, key=lambda one: one.lineno), scope)))
            if not code.co_flags & CO_GENERATOR:  # else its caller has the loop
                break
    return list(found)


def left_by(loop: ast.For, scope: ast.AST) -> list[str]:
    """The same of one loop; `scope` is the function that it is in, or the file."""
    inside = {one.id for one in ast.walk(loop) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    last = loop.end_lineno or loop.lineno
    first: dict[str, bool] = {}
    for name in _in_order(scope):
        if name.lineno > last:
            first.setdefault(name.id, isinstance(name.ctx, ast.Load))
    return [name for name, is_read in first.items() if is_read and name in inside]


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
