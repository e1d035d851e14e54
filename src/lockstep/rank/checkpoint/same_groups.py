"""An optimizer's groups stay the objects that they are when a state is loaded: scripts keep them, and what lies in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle


def keep_groups(optimizer: Optimizer) -> list[RemovableHandle]:
    """Keep the list of groups and each dict in it through `load_state_dict`, where torch makes new ones.

    A learning rate that is a tensor is kept too. Returns the handles that undo this.
    """
    groups: list[dict[str, Any]] = []
    kept: list[dict[str, Any]] = []

    def before(optimizer: Optimizer, _state: Mapping[str, Any]) -> None:
        nonlocal groups, kept
        groups, kept = optimizer.param_groups, [*optimizer.param_groups]

    def after(optimizer: Optimizer) -> None:
        for own, new in zip(kept, optimizer.param_groups, strict=True):
            _fill(own, new)
        groups[:] = kept
        optimizer.param_groups = groups

    return [
        optimizer.register_load_state_dict_pre_hook(before, prepend=True),
        optimizer.register_load_state_dict_post_hook(after, prepend=True),
    ]


def _fill(own: dict[str, Any], new: Mapping[str, Any]) -> None:
    """Let `own` hold what `new` does, and no more."""
    loaded = {key: _filled(own.get(key), value) for key, value in new.items()}
    own.clear()
    own.update(loaded)


def _filled(own: Any, new: Any) -> Any:
    """The tensor that is there, with the new value; or what is new, where they differ in more than that."""
    if isinstance(own, Tensor) and isinstance(new, Tensor) and _kind(own) == _kind(new):
        own.detach().copy_(new)
        return own
    return new


def _kind(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device


def with_references(own: Any, saved: Any, optimizers: Iterable[Optimizer]) -> tuple[Any, dict[int, Any]]:
    """`saved`, but where `own` refers to a group of `optimizers` or their list, that reference; and these by identity.

    A scheduler that keeps `optimizer.param_groups[0]` has it in its state, and would get a copy of it that is dead.
    """
    live: dict[int, Any] = {}
    for optimizer in optimizers:
        for one in (optimizer.param_groups, *optimizer.param_groups, *(g["params"] for g in optimizer.param_groups)):
            live[id(one)] = one
    return _followed(own, saved, live), live


def _followed(own: Any, saved: Any, live: Mapping[int, Any]) -> Any:
    if id(own) in live:
        return own
    if isinstance(own, dict) and isinstance(saved, dict):
        return {key: _followed(own.get(key), value, live) for key, value in saved.items()}
    if type(own) in (list, tuple) and type(own) is type(saved) and len(own) == len(saved):
        return type(saved)(_followed(*pair, live) for pair in zip(own, saved, strict=True))
    return saved
