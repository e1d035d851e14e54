"""The syntax of a script's files, as it is read."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Callable, Iterator
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


def names_in(node: ast.AST) -> Iterator[str]:
    return (one.id for one in ast.walk(node) if isinstance(one, ast.Name))


def bound_in(node: Any) -> frozenset[str]:
    """Names that belong to a function or class by its source."""
    bound, outer = set(), set()
    waiting = [*node.body] if isinstance(node.body, list) else [node.body]
    if not isinstance(node, ast.ClassDef):
        bound |= {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
    while waiting:
        one = waiting.pop()
        if isinstance(one, (ast.Global, ast.Nonlocal)):
            outer |= {*one.names}
        elif isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            bound.add(one.id)
        if isinstance(one, (*_FUNCTIONS, ast.ClassDef)):
            bound.add(getattr(one, "name", ""))
        else:
            waiting += ast.iter_child_nodes(one)
    return frozenset(bound - outer)


def loaded(node: Any) -> Any:
    """The same, to be read."""
    kinds: dict[type, Callable[[], Any]] = {
        ast.Name: lambda: ast.Name(node.id, ast.Load(), lineno=node.lineno),
        ast.Attribute: lambda: ast.Attribute(node.value, node.attr, ast.Load(), lineno=node.lineno),
        ast.Subscript: lambda: ast.Subscript(node.value, node.slice, ast.Load(), lineno=node.lineno),
    }
    return kinds[type(node)]()
