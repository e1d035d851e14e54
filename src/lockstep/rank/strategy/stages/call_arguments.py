"""The arguments of a layer's call as a list of leaves, the same on every stage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.machine.torch_private import pytree


def arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the leaves of a call's arguments, in a fixed order."""
    leaves: list[Any] = pytree.tree_leaves((args, dict(kwargs)))
    return leaves


def replace_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], replaced: Mapping[int, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with some leaves replaced, by number."""
    leaves, form = pytree.tree_flatten((args, dict(kwargs)))
    new_args, new_kwargs = pytree.tree_unflatten([replaced.get(n, leaf) for n, leaf in enumerate(leaves)], form)
    return new_args, new_kwargs
