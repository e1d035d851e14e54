"""What a model returned, without its tensors: JSON words from which the other stages build it again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from lockstep.errors import PromiseBroken, UsageError


def form_of(result: Any, model: str) -> Any:
    """The structure of what `model` returned as JSON words; "t" stands for a tensor.

    Raises:
        UsageError: for an object of another class.
    """
    if isinstance(result, Tensor):
        return "t"
    if result is None or isinstance(result, (bool, int, float, str)):
        return ["value", result]
    if type(result) in (tuple, list):
        return [type(result).__name__, [form_of(part, model) for part in result]]
    if type(result) is dict and all(isinstance(key, str) for key in result):
        return ["dict", {key: form_of(part, model) for key, part in result.items()}]
    raise UsageError(
        f"{model} returns a {type(result).__name__}, which cannot be sent to the other stages. Return a tensor, or a tuple, "
        f"list or dict of tensors; or use --strategy pipeline, where only the last stage needs it."
    )


def built(form: Any, tensors: Iterator[Tensor]) -> Any:
    """The inverse of `form_of`, with these tensors."""
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
