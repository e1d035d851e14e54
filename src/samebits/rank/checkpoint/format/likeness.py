"""Whether a saved value is of the same kind as the one that it replaces. Pure.

A manifest's checksum finds damage, not malice: anybody can seal a state that holds a text where a number belongs. A
value of another kind is refused before anything is loaded, with its path, instead of failing in the next step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def unlike(own: Any, saved: Any, path: str, *, all_keys: bool = False, may_be_unset: bool = False) -> str:
    """The first value of another kind, in words; empty when there is none.

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
    pairs: Iterable[tuple[str, Any, Any]] = ()
    if isinstance(own, Mapping):
        is_alike = isinstance(saved, Mapping) and not (all_keys and any(key not in saved for key in own))
        if is_alike:
            pairs = ((f"{path}.{key}", one, saved[key]) for key, one in own.items() if key in saved)
    elif isinstance(own, (list, tuple)):
        are_lists = isinstance(own, list) and isinstance(saved, list)
        is_alike = are_lists or (isinstance(saved, (list, tuple)) and len(own) == len(saved))
        if is_alike:
            # [Note: why the first item stands for all of a longer list]
            # A list may have grown in the run that was saved, by more of what it had.
            mine = own if len(own) == len(saved) else own[:1] * len(saved)
            pairs = ((f"{path}[{at}]", *pair) for at, pair in enumerate(zip(mine, saved, strict=False)))
    else:
        is_alike = _alike(own, saved)
    if not is_alike:
        return f"{path} is of another kind than in this run"
    rules = {"all_keys": all_keys, "may_be_unset": may_be_unset}
    return next(filter(None, (unlike(one, other, name, **rules) for name, one, other in pairs)), "")


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
