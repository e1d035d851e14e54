"""Writes of a script to tensors past torch's counters of writes: `p.data.mul_(2)`."""

from __future__ import annotations

import ast

from lockstep.run.script.harmless import FILLS
from lockstep.run.script.source import tree
from lockstep.run.watch.holdings import modules_of_the_script, script_frames

_UNCOUNTED = ("vector_to_parameters", "untyped_storage")


def may_write_uncounted() -> bool:
    """Whether the source of the script around the caller, or of modules beside it, has such writes."""
    files = {frame.f_code.co_filename for frame in script_frames()}
    files |= {str(module.__file__) for module in modules_of_the_script()}
    return any(writes_uncounted(tree(file)) for file in files)


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
                and (node.attr in _UNCOUNTED or (_fills(node.attr) and _is_data(node.value)))
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


def _fills(method: str) -> bool:
    return method in FILLS or (method.endswith("_") and not method.startswith("_"))
