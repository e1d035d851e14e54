"""The syntax of a script's files, as it is read."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator, Sequence
from typing import Any

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@functools.lru_cache(256)
def tree(file: str) -> ast.Module:
    """The source as it is when it is read first: somebody may edit it while the script runs."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return ast.Module([], [])


@functools.lru_cache(256)
def functions_in(file: str) -> dict[tuple[str, int], list[Any]]:
    """The functions of a file by name and first line, as their code has it; several lambdas may begin in one line."""
    found: dict[tuple[str, int], list[Any]] = {}
    for node in ast.walk(tree(file)):
        if isinstance(node, _FUNCTIONS):
            first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))])
            found.setdefault((getattr(node, "name", "<lambda>"), first), []).append(node)
    return found


def bound_in(node: ast.AST) -> frozenset[str]:
    """Names that belong to a function, class or comprehension by its source."""
    bound, outer = set(), set()
    for one in ast.walk(node):
        if isinstance(one, (ast.Global, ast.Nonlocal)):
            outer |= {*one.names}
        elif isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            bound.add(one.id)
        elif isinstance(one, ast.arg):
            bound.add(one.arg)
        elif isinstance(one, (ast.FunctionDef, ast.ClassDef)) and one is not node:
            bound.add(one.name)
    return frozenset(bound - outer)


def loops_around(
    body: list[ast.stmt], line: int, after: Sequence[ast.stmt] = ()
) -> Iterator[tuple[ast.For | ast.While, list[ast.stmt]]]:
    """The loops of a function around a line, outermost first, each with what follows on it in the function, and then `after`."""
    for number, one in enumerate(body):
        if not one.lineno <= line <= (one.end_lineno or 0) or isinstance(one, (ast.FunctionDef, ast.ClassDef)):
            continue
        behind = [*body[number + 1 :], *after]
        if isinstance(one, (ast.For, ast.While)):
            behind = [*one.orelse, *behind]
            yield one, behind
        for block in ("body", "orelse", "handlers", "cases", "finalbody"):
            inner = getattr(one, block, [])
            for part in [each.body for each in inner] if inner and not isinstance(inner[0], ast.stmt) else [inner]:
                yield from loops_around(part, line, behind)
