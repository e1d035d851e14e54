"""Whether a saved value is of the same kind as the one that it replaces. Pure.

A manifest's checksum finds damage, not malice: anybody can seal a state that holds a text where a number belongs. A
value of another kind is refused before anything is loaded, with its path, instead of failing in the next step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def unlike(own: Any, saved: Any, path: str, *, all_keys: bool = False, may_be_unset: bool = False) -> str:
    """Where the kinds differ, in words; empty when they do not.

    Numbers are alike, with tensors of one number too; switches are; texts are; tensors and arrays of equal shape and kind of number;
    sequences of equal length whose items are, or of any length where both are lists; mappings by the keys that both have.
    What is None in the run may be anything, and a switch may be None.

    Args:
        own: what the run has.
        saved: what takes its place.
        path: its name in messages.
        all_keys: whether a saved mapping must have every key that the run's has.
        may_be_unset: whether anything may be None.
    """
    if own is None or (saved is None and (may_be_unset or isinstance(own, bool))):
        return ""
    rules = {"all_keys": all_keys, "may_be_unset": may_be_unset}
    if isinstance(own, Mapping):
        return _unlike_mapping(own, saved, path, rules)
    if isinstance(own, (list, tuple)):
        return _unlike_sequence(own, saved, path, rules)
    return "" if _alike(own, saved) else f"{path} is {_said(saved)}, not {_said(own)}"


def _unlike_mapping(own: Mapping[Any, Any], saved: Any, path: str, rules: dict[str, bool]) -> str:
    if not isinstance(saved, Mapping):
        return f"{path} is {_said(saved)}, not a dictionary"
    if rules["all_keys"] and (missing := [key for key in own if key not in saved]):
        return f"{path} has no {missing[0]!r}"
    common = [key for key in own if key in saved]
    return _first(unlike(own[key], saved[key], f"{path}.{key}", **rules) for key in common)


def _unlike_sequence(own: list[Any] | tuple[Any, ...], saved: Any, path: str, rules: dict[str, bool]) -> str:
    if not isinstance(saved, (list, tuple)):
        return f"{path} is {_said(saved)}, not a sequence"
    if len(own) != len(saved):
        if isinstance(own, list) and isinstance(saved, list):
            own = own[:1] * len(saved)
        else:
            return f"{path} has {len(saved)} items, not {len(own)}"
    pairs = enumerate(zip(own, saved, strict=False))
    return _first(unlike(one, other, f"{path}[{number}]", **rules) for number, (one, other) in pairs)


def _alike(own: Any, saved: Any) -> bool:
    if _is_number(own) and _is_number(saved):
        return True
    if isinstance(own, (Tensor, np.ndarray)) and isinstance(saved, (Tensor, np.ndarray)):
        return tuple(own.shape) == tuple(saved.shape) and _kind(own) == _kind(saved)
    if isinstance(own, bool) or isinstance(saved, bool):
        return type(own) is type(saved)
    return not _is_number(own) and (isinstance(saved, type(own)) or isinstance(own, type(saved)))


def _is_number(value: Any) -> bool:
    """Whether it is a number; an integer that no tensor can hold is not."""
    if isinstance(value, Tensor):
        return value.numel() == 1 and value.dtype is not torch.bool
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 1 << 63
    return isinstance(value, (float, np.number))


def _kind(value: Tensor | np.ndarray[Any, Any]) -> tuple[bool, bool]:
    if isinstance(value, Tensor):
        return value.is_floating_point(), value.is_complex()
    return value.dtype.kind == "f", value.dtype.kind == "c"


def _said(value: Any) -> str:
    if isinstance(value, (Tensor, np.ndarray)):
        return f"a {type(value).__name__} of shape {tuple(value.shape)} and {value.dtype}".replace("torch.", "")
    return f"{type(value).__name__} {str(value)[:40]!r}"


def _first(problems: Any) -> str:
    return next(filter(None, problems), "")
