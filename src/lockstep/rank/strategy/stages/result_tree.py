"""What a model returns, as a tree of tensors: tuples, lists, dicts, NamedTuples, dataclasses, or an object of its own.

Other objects inside it (such as a cache of keys and values) are left alone: a stage keeps its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor, nn

from lockstep.machine.torch_private import pytree


def tensors_of(result: Any) -> list[Tensor]:
    """All tensors, in a fixed order; one that occurs twice appears twice."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    _map(result, note, True)
    return found


def with_tensors(result: Any, new: Callable[[Tensor], Tensor]) -> Any:
    """Return the same tree with other tensors: containers are new if anything in them is."""
    return _map(result, new, True)


def _map(value: Any, new: Callable[[Tensor], Tensor], is_outermost: bool) -> Any:
    if isinstance(value, Tensor):
        return new(value)
    if not pytree.tree_is_leaf(value):
        children, form = pytree.tree_flatten(value, is_leaf=lambda node: node is not value)
        made = [_map(child, new, False) for child in children]
        same = all(one is other for one, other in zip(children, made, strict=True))
        return value if same else pytree.tree_unflatten(made, form)
    return _with_attributes(value, new, is_outermost)


def _with_attributes(value: Any, new: Callable[[Tensor], Tensor], is_outermost: bool) -> Any:
    """Map a dataclass's fields, or the attributes of the model's own result object."""
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if hasattr(value, field.name)]
    elif is_outermost and hasattr(value, "__dict__") and not isinstance(value, (nn.Module, type)):
        names = list(vars(value))
    else:
        return value
    made = {name: _map(getattr(value, name), new, False) for name in names}
    changed = {name: one for name, one in made.items() if one is not getattr(value, name)}
    if not changed:
        return value
    other = copy.copy(value)
    for name, one in changed.items():
        object.__setattr__(other, name, one)  # frozen dataclasses too
    return other
