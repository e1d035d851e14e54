"""Plain attributes of a model's modules, which no state holds: a temperature that the script lowers, a list that it fills.

What `forward` only replaces (`self.attention = weights.detach()`) is left out: the next call replaces it again.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from torch import nn

from lockstep.run.watch.flow import accumulated, fills
from lockstep.run.watch.holdings import is_of_the_users_class

_TORCHS = frozenset(vars(nn.Module()))
_ATOMS = (str, bytes, int, float, complex, tuple, type(None))


def plain_attributes(module: nn.Module) -> dict[str, Any]:
    """What a script may change that is neither a parameter nor a buffer nor a module; of library classes numbers and texts."""
    left_out = _TORCHS | replaced_in_lanes(type(module))  # type: ignore[arg-type]  # a type has a hash
    kept = object if is_of_the_users_class(module) else _ATOMS
    found = {name: value for name, value in list(vars(module).items()) if name not in left_out}
    return {name: value for name, value in found.items() if isinstance(value, kept) and not callable(value)}


@functools.lru_cache(1024)
def replaced_in_lanes(kind: type) -> frozenset[str]:
    """The attributes that `forward`, or a method that it calls, replaces and does not make from what they were."""
    replaced: set[str] = set()
    grown: set[str] = set()
    seen: set[str] = set()
    names = ["forward"]
    while names:
        name = names.pop()
        method = inspect.getattr_static(kind, name, None)
        if name not in seen and isinstance(method, FunctionType):
            tree, own = _source(method), method.__code__.co_varnames[0] if method.__code__.co_argcount else ""
            grown.update(accumulated(tree))
            for node in ast.walk(tree):
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == own:
                    (replaced.add if isinstance(node.ctx, ast.Store) else names.append)(node.attr)
                elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                    grown.update(_first(node, own))
                elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and fills(node.func.attr):
                    grown.update(_first(node.func.value, own))
        seen.add(name)
    return frozenset(replaced - grown)


def _source(method: FunctionType) -> ast.AST:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(method)))
    except (OSError, SyntaxError, TypeError):
        return ast.Module([], [])


def _first(node: ast.AST, own: str) -> Iterator[str]:
    """`attn` of `self.attn.last[0]`."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == own:
            yield node.attr
        node = node.value
