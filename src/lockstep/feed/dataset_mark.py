"""Noticing that a script has changed its data set since the loader workers were started.

Forked workers have the data set as it was then; a worker that replaces one would have it as it is now. So what can be
seen cheaply is compared: numbers, texts, and which objects, how long and in which version, in the attributes of the
data set and of the objects in them. What a script writes into an array in place is not seen.
"""

from __future__ import annotations

from types import FunctionType, ModuleType
from typing import Any

from torch import Tensor

Mark = tuple[Any, ...]
MOST_OBJECTS = 500
_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_NOT_INSIDE = (type, Tensor, FunctionType, ModuleType)


def mark_of(dataset: Any) -> Mark:
    """Equal for two moments if nothing that is looked at has changed in between."""
    found: list[Any] = []
    left: list[Any] = [dataset]
    seen: set[int] = set()
    while left and len(seen) < MOST_OBJECTS:
        one = left.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        for name, value in sorted(getattr(one, "__dict__", {}).items()):
            found.append((name, _seen(value)))
            items = value if isinstance(value, list | tuple) else [value]
            shown = items if len(items) <= MOST_OBJECTS else [items[0], items[len(items) // 2], items[-1]]
            left += [item for item in shown if hasattr(item, "__dict__") and not isinstance(item, _NOT_INSIDE)]
            found.append([_seen(item) for item in shown])
    return tuple(found)


def _seen(value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, Tensor):
        return (id(value), -1 if value.is_inference() else value._version)  # noqa: SLF001 - the counter of writes
    return (id(value), len(value) if isinstance(value, list | tuple | dict | set) else 0)
