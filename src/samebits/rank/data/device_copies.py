"""How a batch gets to the rank's device: moved as a whole, from page-locked memory, on a stream of its own."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
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
        # A mapping's class may have more to it than its items.
        if isinstance(value, MutableMapping):
            clone = copy.copy(value)
            clone.update(items)
            return clone
        return type(value)(items)  # type: ignore[call-arg]
    except TypeError:
        return items


def pinned(batch: Any) -> Any:
    """Return `batch` with every dense tensor of the CPU in page-locked memory; containers keep their types.

    Objects with a `pin_memory()` method of their own are asked, and stay as they are where they cannot.
    """
    return mapped(batch, "pin_memory", _locked)


def _locked(value: Any) -> Any:
    if isinstance(value, Tensor):
        can_be = value.device.type == "cpu" and value.layout is torch.strided
        return value.pin_memory() if can_be else value
    try:
        return value.pin_memory()
    except RuntimeError:
        # It holds a tensor of a device, which cannot be pinned.
        return value


class Pinnable:
    """A batch on its way from a worker, which torch's pinning thread asks to lock itself."""

    def __init__(self, batch: Any) -> None:
        self.batch = batch

    def pin_memory(self) -> Pinnable:
        return Pinnable(pinned(self.batch))


class CollatePinnable:
    """A `collate_fn` for workers."""

    def __init__(self, collate_fn: Callable[[Any], Any]) -> None:
        self._collate_fn = collate_fn

    def __call__(self, samples: Any) -> Pinnable:
        return Pinnable(self._collate_fn(samples))


CPU = torch.device("cpu")


@dataclass(frozen=True)
class Copy:
    """A batch whose copy has begun."""

    source: Any
    batch: Any
    """On the device once `done` has happened."""
    done: Any
    """An event on the copying stream; None when the copy was made on the compute stream."""


class CopyStream:
    """One rank's copying stream. Nothing but its two methods knows about streams and events.

    Args:
        device: where batches go; the process's current device of its kind.
        streams: torch's module for such devices (`torch.cuda`, `torch.cpu`), with Stream, stream and current_stream.
    """

    def __init__(self, device: torch.device, streams: Any = None) -> None:
        self._device = device
        self._streams = torch.get_device_module(device) if streams is None else streams
        self._copying = self._streams.Stream()

    def begin(self, batch: Any) -> Copy:
        """Queue the copy of a batch; what is on the device already stays there.

        A batch with tensors of another device, or inside objects that move themselves, is copied on the compute stream:
        nothing here knows what must wait for what.
        """
        tensors = tensors_in(batch)
        places = {tensor.device for tensor in tensors or ()}
        if tensors is not None and CPU not in places and places <= {self._device}:
            return Copy(None, batch, None)
        if self._device.type == "cuda":
            batch = pinned(batch)
        if tensors is None or not places <= {self._device, CPU}:
            return Copy(None, to_device(batch, self._device), None)
        with self._streams.stream(self._copying):
            moved = to_device(batch, self._device)
            done = self._copying.record_event()
        return Copy(batch, moved, done)

    def hand_over(self, copy: Copy) -> Any:
        """Return the batch for the compute stream; work queued there from now on sees it complete. Does not block."""
        if copy.done is not None:
            compute = self._streams.current_stream()
            compute.wait_event(copy.done)
            for tensor in tensors_in(copy.batch) or []:
                # torch's allocator must not give the memory to the copying stream while the compute stream reads it.
                if tensor.is_cuda:
                    tensor.record_stream(compute)
        return copy.batch
