"""Moving a batch to the rank's device: tensors inside lists, tuples, dictionaries, named tuples and data classes."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
from torch import Tensor


def to_device(batch: Any, device: torch.device) -> Any:
    """Return `batch` with every tensor on `device`; containers keep their types, everything else is passed on as it is.

    Objects with a `to(device)` method of their own (BatchEncoding, PackedSequence, graphs) are asked to move.
    """
    if device.type == "cpu":
        return batch

    def move(value: Any) -> Any:
        return value.to(device, non_blocking=value.is_pinned()) if isinstance(value, Tensor) else value.to(device)

    return mapped(batch, "to", move)


def mapped(value: Any, own: str, change: Callable[[Any], Any]) -> Any:  # noqa: PLR0911 - a return for each container
    """Return `value` with `change` applied to every tensor and every object that has a method of the name `own`."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (str, bytes, int, float, bool, type(None))):
        return value
    if callable(getattr(value, own, None)):
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(item, own, change) for item in value))
    if isinstance(value, Mapping):
        return _rebuilt(value, {key: mapped(item, own, change) for key, item in value.items()})
    if isinstance(value, (list, tuple, set)):
        return type(value)(mapped(item, own, change) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: mapped(getattr(value, field.name), own, change) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value


def tensors_in(batch: Any) -> list[Tensor] | None:
    """Every tensor of a batch; None when some object in it moves itself, so its tensors are not known."""
    if isinstance(batch, Tensor):
        return [batch]
    if isinstance(batch, (str, bytes, int, float, bool, type(None))):
        return []
    if callable(getattr(batch, "to", None)):
        return None
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        items = [getattr(batch, field.name) for field in dataclasses.fields(batch)]
    elif isinstance(batch, Mapping):
        items = list(batch.values())
    elif isinstance(batch, (list, tuple, set)):
        items = list(batch)
    else:
        return []
    found: list[Tensor] = []
    for item in items:
        tensors = tensors_in(item)
        if tensors is None:
            return None
        found += tensors
    return found


def _rebuilt(value: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    try:
        if isinstance(value, MutableMapping):  # its class may have more to it than its items
            clone = copy.copy(value)
            clone.update(items)
            return clone
        return type(value)(items)  # type: ignore[call-arg]
    except TypeError:
        return items
