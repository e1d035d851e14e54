"""Moving a batch to the rank's device: tensors inside lists, tuples, dictionaries, named tuples and data classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def to_device(batch: Any, device: torch.device) -> Any:
    """Return `batch` with every tensor on `device`; containers keep their types, everything else is passed on as it is.

    Objects with a `to(device)` method of their own (BatchEncoding, PackedSequence, graphs) are asked to move.
    """
    if device.type == "cpu":
        return batch
    return _moved(batch, device)


def _moved(value: Any, device: torch.device) -> Any:  # noqa: PLR0911 - one return for each kind of container
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=value.is_pinned())
    if isinstance(value, (str, bytes, int, float, bool, type(None))):
        return value
    if callable(getattr(value, "to", None)):
        return value.to(device)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_moved(item, device) for item in value))
    if isinstance(value, Mapping):
        return _rebuilt(value, {key: _moved(item, device) for key, item in value.items()})
    if isinstance(value, (list, tuple, set)):
        return type(value)(_moved(item, device) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _moved(getattr(value, field.name), device) for field in dataclasses.fields(value)}
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
        return type(value)(items)  # type: ignore[call-arg]
    except TypeError:
        return items
