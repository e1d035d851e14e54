"""Cut a model's arguments into parts for replicas, and join their outputs, on the CPU.

The rules are those of torch.nn.parallel.scatter and gather, which work only on GPUs: tensors are cut along dim 0 as by
torch.chunk, containers are searched, and everything else goes to every replica by reference.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lockstep.errors import UsageError

Share = tuple[tuple[Any, ...], dict[str, Any]]
"""One replica's positional and keyword arguments."""


def scatter_call(args: tuple[Any, ...], kwargs: Mapping[str, Any], count: int) -> list[Share]:
    """Return the arguments of at most `count` replicas: fewer if a tensor has fewer rows, one if there is no argument.

    A batch with fewer rows than replicas has fewer parts than a keyword argument without rows. torch then adds calls
    without a batch, which raise TypeError; here there is one call for each part of the batch.

    Raises:
        UsageError: for a tensor without dimensions.
    """
    positional = [tuple(part) for part in _parts(args, count)] if args else []
    named = [dict(part) for part in _parts(dict(kwargs), count)] if kwargs else []
    if not args or not kwargs:
        return [(part, {}) for part in positional] or [((), part) for part in named] or [((), {})]
    return list(zip(positional, named, strict=False))


def _parts(value: Any, count: int) -> Sequence[Any]:
    """Cut `value` into parts for replicas; the shortest of a container's members decides how many there are."""
    if isinstance(value, Tensor):
        if not value.dim():
            raise UsageError(
                "dp cuts every tensor that the model is called with along dim 0, but one of them has no dimensions.",
                "Pass it as a number, or as a tensor with one row per sample.",
            )
        return value.chunk(count)
    if not isinstance(value, (tuple, list, dict)) or not value:
        return [value] * count
    members = value.values() if isinstance(value, dict) else value
    cut = list(zip(*(_parts(member, count) for member in members), strict=False))
    if isinstance(value, dict):
        return [type(value)(zip(value, part, strict=True)) for part in cut]
    return [_like(value, part) for part in cut]


def gather_outputs(outputs: Sequence[Any]) -> Any:
    """Join the replicas' outputs: tensors along dim 0, scalars to a vector, containers member by member.

    Raises:
        UsageError: for outputs that cannot be joined.
    """
    first = outputs[0]
    if isinstance(first, Tensor):
        return _join(outputs)
    if first is None:
        return None
    if isinstance(first, dict):
        if any(other.keys() != first.keys() for other in outputs):
            raise UsageError(
                "The replicas of dp returned dictionaries with different keys, so they cannot be joined.",
                "Return the same keys whatever the samples are, or use --strategy ddp.",
            )
        return type(first)((key, gather_outputs([output[key] for output in outputs])) for key in first)
    if isinstance(first, (tuple, list)):
        if any(len(other) != len(first) for other in outputs):
            raise UsageError(
                "The replicas of dp returned collections of different lengths, so they cannot be joined.",
                "Return the same form whatever the samples are, or use --strategy ddp.",
            )
        return _like(first, [gather_outputs(members) for members in zip(*outputs, strict=True)])
    raise UsageError(
        f"dp joins tensors, and tuples, lists and dictionaries of them, but the model returned {type(first).__name__}.",
        "Return tensors from forward.",
    )


def _join(outputs: Sequence[Tensor]) -> Tensor:
    if any(output.dim() for output in outputs):
        return torch.cat(list(outputs))
    warnings.warn(
        "Was asked to gather along dimension 0, but all input tensors were scalars; will instead unsqueeze and return a "
        "vector.",
        stacklevel=2,
    )
    return torch.stack(list(outputs))


def _like(container: Any, members: Sequence[Any]) -> Any:
    if isinstance(container, tuple) and hasattr(container, "_fields"):
        return type(container)(*members)
    return type(container)(members)
