"""What a model returned, without its tensors: JSON words from which a stage that could not follow forward builds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from lockstep.errors import PromiseBroken


def form_of(result: Any) -> Any:
    """The structure of what the model returned as JSON words, "t" for a tensor. None for an object of another class."""
    if isinstance(result, Tensor):
        return "t"
    if result is None or isinstance(result, (bool, int, float, str)):
        return ["value", result]
    if type(result) in (tuple, list):
        parts = [form_of(part) for part in result]
        return None if None in parts else [type(result).__name__, parts]
    if type(result) is dict and all(isinstance(key, str) for key in result):
        named = {key: form_of(part) for key, part in result.items()}
        return None if None in named.values() else ["dict", named]
    return None


def built(form: Any, tensors: Iterator[Tensor]) -> Any:
    """Invert `form_of`, with these tensors."""
    if form == "t":
        return next(tensors)
    kind, parts = form
    if kind == "value":
        return parts
    if kind == "dict":
        return {key: built(part, tensors) for key, part in parts.items()}
    if kind not in ("tuple", "list"):
        raise PromiseBroken(f"the form {form!r} of a result is unknown")
    values = [built(part, tensors) for part in parts]
    return tuple(values) if kind == "tuple" else values
