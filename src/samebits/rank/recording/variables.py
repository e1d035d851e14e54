"""Plain values in the variables of a script: what `run.state` could keep, and a script that keeps it itself loses.

`samebits verify --interrupt` records them by name to tell a person which one is behind a difference. They are no evidence by
themselves: a clock, a path, a counter for the screen may differ.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samebits.errors import UsageError
from samebits.rank.look.frames import is_a_class_of_the_users, script_frames
from samebits.rank.position.exact_json import digest, encode
from samebits.rank.strategy.agreement import tensor_hash

MAX_ITEMS = 10_000
"""Longer containers are data."""
MAX_ELEMENTS = 1 << 20
"""Larger tensors are data."""
_GENERATORS: dict[type, Callable[[Any], Any]] = {
    torch.Generator: lambda value: value.get_state(),
    np.random.Generator: lambda value: value.bit_generator.state,
    np.random.RandomState: lambda value: value.get_state(legacy=False),
    random.Random: lambda value: value.getstate(),
}


def plain_variables() -> Iterator[tuple[str, str]]:
    """Name and text of each plain value and generator in the script's variables; equal texts mean equal bits."""
    for frame in script_frames():
        for variables in (frame.f_locals, frame.f_globals):
            for name, thing in list(variables.items()):
                if not name.startswith("_"):
                    yield from _texts(name, thing)


def _texts(name: str, thing: Any) -> Iterator[tuple[str, str]]:
    if is_a_class_of_the_users(type(thing)) and not isinstance(thing, (type, ModuleType)):
        for key, value in list(getattr(thing, "__dict__", {}).items()):
            if not key.startswith("_") and (text := text_of(value)):
                yield f"{name}.{key}", text
    elif text := text_of(thing):
        yield name, text


def text_of(value: Any) -> str:
    """The value as text; empty for what is not plain."""
    if value is None or isinstance(value, (bool, int, str)):
        return repr(value)
    if isinstance(value, float):
        return float(value).hex()
    for kind, state_of in _GENERATORS.items():
        if isinstance(value, kind):
            return f"a generator, {_digest(state_of(value))}"
    if isinstance(value, (Tensor, np.ndarray)):
        return "" if _is_large(value) else f"a {type(value).__name__}, {_digest(value)}"
    if not isinstance(value, (list, tuple, dict, set, frozenset, deque)) or len(value) > MAX_ITEMS:
        return ""
    found = _digest(list(value) if isinstance(value, deque) else value)
    return found and f"{len(value)} item{'s' * (len(value) != 1)}, {found}"


def _is_large(value: Tensor | np.ndarray[Any, Any]) -> bool:
    is_trained = isinstance(value, nn.Parameter)
    elements = value.numel() if isinstance(value, Tensor) else value.size
    return is_trained or elements > MAX_ELEMENTS or (isinstance(value, Tensor) and value.is_meta)


def _digest(value: Any) -> str:
    """A digest of what `run.state` could keep; empty for anything else."""
    tensors: list[Tensor] = []

    def keep(path: str, tensor: Tensor) -> str:
        if _is_large(tensor):
            raise UsageError(f"{path} is large.", "Leave it out.")
        tensors.append(tensor)
        return ""

    try:
        document = encode(value, "", keep)
    except UsageError:
        return ""
    return digest([document, [tensor_hash(tensor) for tensor in tensors]])
