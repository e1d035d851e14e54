"""Writes of a script to tensors past torch's counters of writes: `p.data.mul_(2)`."""

from __future__ import annotations

import ast

from lockstep.rank.checks.script.calls import fills
from lockstep.rank.checks.script.source import tree
from lockstep.rank.checks.script_objects import modules_of_the_script, script_frames

_UNCOUNTED = ("vector_to_parameters", "untyped_storage")


def may_write_uncounted() -> bool:
    """Whether the source of the script around the caller, or of modules beside it, has such writes."""
    files = {frame.f_code.co_filename for frame in script_frames()}
    files |= {str(module.__file__) for module in modules_of_the_script()}
    return any(writes_uncounted(tree(file)) for file in files)


def writes_uncounted(tree: ast.AST) -> bool:
    """Whether some statement may write to a tensor past its counter of writes: `p.data.mul_(2)`, `p.data = other`."""
    return any(_writes(node) for node in ast.walk(tree))


def _writes(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        if node.attr == "data":
            return isinstance(node.ctx, ast.Store)
        return node.attr in _UNCOUNTED or (fills(node.attr) and _is_data(node.value))
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Store) and _is_data(node.value)
    if isinstance(node, ast.Name):
        return node.id in _UNCOUNTED
    return isinstance(node, ast.Assign) and _is_data(node.value)


def _is_data(node: ast.AST) -> bool:
    while isinstance(node, ast.Subscript):
        node = node.value
    return isinstance(node, ast.Attribute) and node.attr == "data" and _last(node.value) != "utils"


def _last(node: ast.AST) -> str:
    """`c` of `a.b.c`."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
