"""Values as JSON that come back exactly: tuples, keys that are not strings, nan, dtypes, tensors beside the JSON.

What JSON expresses exactly stays as it is; everything else is an object with the key `$` that names its type. Tensors
are handed to the caller, who keeps them in a safetensors file under a name. What cannot be expressed is refused when it
is written, by its path, and never pickled. A subclass of float comes back as a float.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits.errors import UsageError

TAG = "$"
Keep = Callable[[str, Tensor], str]
"""Takes a value's path and a tensor; returns the name under which the tensor is kept."""
Take = Callable[[str], Tensor]

_MAPPINGS: dict[str, Callable[[list[tuple[Any, Any]]], Any]] = {
    "dict": dict,
    "ordered_dict": OrderedDict,
    "counter": lambda pairs: Counter(dict(pairs)),
}
_SEQUENCES: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "size": torch.Size,
    "complex": lambda parts: complex(*parts),
    "range": lambda parts: range(*parts),
}
_LEAVES: dict[str, Callable[[Mapping[str, Any], Take], Any]] = {
    "tensor": lambda value, take: take(value["name"]),
    "ndarray": lambda value, take: take(value["name"]).numpy(),
    "float": lambda value, _: struct.unpack(">d", bytes.fromhex(value["bits"]))[0],
    "int": lambda value, _: int(value["hex"], 16),
    "bytes": lambda value, _: bytes.fromhex(value["hex"]),
    "device": lambda value, _: torch.device(value["name"]),
    "numpy": lambda value, _: np.frombuffer(bytes.fromhex(value["hex"]), _number_type(value["dtype"]))[0],
    "dtype": lambda value, _: _DTYPES[value["name"]],
}
_DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)
}


def digest(value: Any) -> str:
    """A digest that is equal for equal JSON."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()


def _number_type(name: str) -> np.dtype[Any]:
    if not re.fullmatch(r"[<>=|][biufc]\d+", name):
        raise ValueError(f"{name!r} is not a number type")
    return np.dtype(name)


def encode(value: Any, path: str, keep: Keep) -> Any:
    """`value` as something that `json.dumps(..., allow_nan=False)` writes.

    Args:
        value: what to write.
        path: its name in messages, such as `scheduler.milestones`.
        keep: called for each tensor.

    Raises:
        UsageError: for what cannot be written without pickle; the message has its path.
    """
    try:
        return _Encoding(keep).of(value, path)
    except RecursionError:
        raise UsageError(
            f"{path} is nested too deeply to be saved.",
            "Save it as a flat dictionary, or as an object with state_dict and load_state_dict.",
        ) from None


class _Encoding:
    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._above: set[int] = set()
        """Containers that the current value is inside."""

    def of(self, value: Any, path: str) -> Any:
        if value is None or type(value) in (bool, str):
            return value
        if isinstance(value, Tensor):
            return {TAG: "tensor", "name": self._keep(path, value)}
        if isinstance(value, np.generic):
            return _numpy(value, path)
        if type(value) is int or isinstance(value, float):
            return _number(value)
        if (simple := _simple(value)) is not None:
            return simple
        if id(value) in self._above:
            raise UsageError(
                f"{path} contains itself, which cannot be saved.", "Save a copy without the reference to itself."
            )
        self._above.add(id(value))
        try:
            return self._container(value, path)
        finally:
            self._above.discard(id(value))

    def _container(self, value: Any, path: str) -> Any:
        kind = type(value)
        if kind is list:
            return [self.of(item, f"{path}[{number}]") for number, item in enumerate(value)]
        if kind is dict and TAG not in value and all(type(key) is str for key in value):
            return {key: self.of(item, f"{path}.{key}") for key, item in value.items()}
        if kind in (dict, OrderedDict, Counter):
            name = {dict: "dict", OrderedDict: "ordered_dict", Counter: "counter"}[kind]
            items = [[self.of(key, f"{path} key"), self.of(item, f"{path}.{key}")] for key, item in value.items()]
            return {TAG: name, "items": items}
        if kind in (tuple, torch.Size):
            items = [self.of(item, f"{path}[{number}]") for number, item in enumerate(value)]
            return {TAG: "size" if kind is torch.Size else "tuple", "items": items}
        if kind in (set, frozenset):
            items = sorted((self.of(item, f"{path} item") for item in value), key=json.dumps)
            return {TAG: kind.__name__, "items": items}
        if kind is np.ndarray and value.dtype.kind in "biuf" and value.dtype.isnative:
            tensor = torch.from_numpy(np.array(value, order="C"))
            return {TAG: "ndarray", "name": self._keep(path, tensor)}
        raise UsageError(
            f"{path} is {_described(value)}, which cannot be saved without pickle.",
            "Save what it is made of (numbers, strings, lists, dictionaries, tensors), or an object with state_dict "
            "and load_state_dict.",
        )


def _numpy(value: np.generic, path: str) -> Any:
    if value.dtype.kind not in "biufc":
        raise UsageError(f"{path} is {_described(value)}, which cannot be saved without pickle.", "Save a number.")
    return {TAG: "numpy", "dtype": value.dtype.str, "hex": value.tobytes().hex()}


def _number(value: float) -> Any:
    if isinstance(value, int):
        return value if abs(value) < 2**63 else {TAG: "int", "hex": hex(value)}
    plain = float(value)
    return plain if math.isfinite(plain) else {TAG: "float", "bits": struct.pack(">d", plain).hex()}


def _simple(value: Any) -> dict[str, Any] | None:
    """Encode what is not a container but needs a tag; None for anything else."""
    kind = type(value)
    if kind is torch.dtype:
        return {TAG: "dtype", "name": str(value).removeprefix("torch.")}
    if kind is torch.device:
        return {TAG: "device", "name": str(value)}
    if kind is bytes:
        return {TAG: "bytes", "hex": value.hex()}
    if kind is complex:
        parts = [value.real, value.imag]
        return {TAG: "complex", "items": [_number(part) for part in parts]}
    if kind is range:
        return {TAG: "range", "items": [value.start, value.stop, value.step]}
    return None


def _described(value: Any) -> str:
    name = getattr(value, "__qualname__", None)
    return f"the function {name}" if callable(value) and name else f"a {type(value).__qualname__}"


def decode(value: Any, take: Take) -> Any:
    """The inverse of `encode`; `take` returns the tensor of a name.

    Raises:
        UsageError: for what `encode` does not write.
    """
    try:
        return _decode(value, take)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, struct.error, RuntimeError) as error:
        raise UsageError(
            f"The saved state holds {_beginning(value)!r}, which samebits does not write ({error}).",
            "Load a state that run.save_state wrote and that has not been changed since.",
        ) from None


def _beginning(value: Any) -> str:
    try:
        return str(value)[:60]
    except RecursionError:
        return "something nested too deeply"


def _decode(value: Any, take: Take) -> Any:
    if isinstance(value, list):
        return [_decode(item, take) for item in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {key: _decode(item, take) for key, item in value.items()}
    tag = value[TAG]
    if tag in _MAPPINGS:
        return _MAPPINGS[tag]([(_decode(key, take), _decode(item, take)) for key, item in value["items"]])
    if tag in _SEQUENCES:
        return _SEQUENCES[tag]([_decode(item, take) for item in value["items"]])
    return _LEAVES[tag](value, take)
