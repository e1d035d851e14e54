"""The arguments of a call by their names, to look at and to change some, and the call handed on as it was made.

What stands in `torch.distributed` may be a library's own function that takes anything (`*args, **kwargs`) and hands it on.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

INIT = ("backend", "init_method", "timeout", "world_size", "rank", "store", "group_name", "pg_options", "device_id")
NEW_GROUP = ("ranks", "timeout", "backend", "pg_options")
"""What torch's `init_process_group` and `new_group` take, in that order."""


class CallByName:
    """How a function is called.

    Args:
        function: what is called.
        order: the names of what it takes at most, in the order in which they may be given without names.
    """

    def __init__(self, function: Callable[..., Any], order: Sequence[str]) -> None:
        self._signature = inspect.signature(function)
        kinds = self._signature.parameters.values()
        names = [one.name for one in kinds if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        takes_more = any(one.kind is one.VAR_POSITIONAL for one in kinds)
        self._order = [*names, *order[len(names) :]] if takes_more else names

    def look(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """What is given, by name. Raises TypeError where the function would."""
        self._signature.bind(*args, **kwargs)
        return {**dict(zip(self._order, args, strict=False)), **kwargs}

    def change(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], changes: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The same call with other values: what was given in its place stays there."""
        placed = tuple(changes.get(name, value) for name, value in zip(self._order, args, strict=False))
        return placed, {
            **kwargs,
            **{name: value for name, value in changes.items() if name not in self._order[: len(args)]},
        }
