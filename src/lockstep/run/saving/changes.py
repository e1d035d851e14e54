"""Whether a script has changed what a state holds, or what none holds, since some place.

Ranks that go on from there run the script from that place again. What the script changed there by itself (weights before
the lanes, an average) it would change a second time. Small things are copied, so that a replacement gets them as they
were; for the others torch's version counters tell.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lockstep.run.run_state import Progress
from lockstep.run.saving.state import optimizers_of, schedulers_of
from lockstep.strategy.bit_sums import bit_sums, packed


@dataclass(frozen=True)
class Small:
    """Copies of what is small."""

    states: Mapping[str, Any]
    """Of schedulers and the run's own objects, by label."""
    options: list[list[dict[str, Any]]]
    """Of each optimizer's groups: learning rates and the like."""
    values: Mapping[str, Any]
    """`run.state`; tensors in it are not copied."""
    objection: str = ""
    """Why there are no copies."""

    def is_like(self, other: Small) -> bool:
        """Whether states and options are the same; not, where that cannot be told."""
        try:
            return bool((self.states, self.options) == (other.states, other.options)) and not self.objection
        except Exception:  # noqa: BLE001 - tensors are compared element by element, other objects as they like
            return False

    @classmethod
    def of(cls, progress: Progress) -> Small:
        states = {label: one.state_dict() for label, one in (*schedulers_of(progress), *progress.stateful.items())}
        options = [
            [{key: _copied(value) for key, value in group.items() if key != "params"} for group in one.param_groups]
            for _, one in optimizers_of(progress)
        ]
        try:
            return cls(copy.deepcopy(states), options, _copied(vars(progress.values)))
        except Exception as error:  # noqa: BLE001 - an object of the script may hold anything
            return cls({}, options, {}, f"a scheduler cannot be copied ({type(error).__name__}: {error})")


def versions(progress: Progress) -> list[Any]:
    """What changes with every write to what is large: weights, buffers, optimizer states, tracked objects, tensors."""
    found: list[Any] = [
        _version(tensor)
        for model in progress.models
        for tensors in (model.parameters(), model.buffers())
        for tensor in tensors
    ]
    for _, optimizer in optimizers_of(progress):
        for state in optimizer.state.values():
            found.extend(_versions(state))
    for thing in progress.tracked.values():
        found.extend(_versions(thing.state_dict()))
    for value in vars(progress.values).values():
        found.extend(one for one in _versions(value) if isinstance(one, tuple))
    return found


def bits_of(progress: Progress) -> list[Any]:
    """What changes with the bits of the same, however they are written: `p.data.mul_(2)` is a write that nobody counts."""
    found: list[Any] = [tensor for model in progress.models for tensor in (*model.parameters(), *model.buffers())]
    for _, optimizer in optimizers_of(progress):
        for state in optimizer.state.values():
            found.extend(_values(state))
    for thing in progress.tracked.values():
        found.extend(_values(thing.state_dict()))
    dense = [
        one.detach() for one in found if isinstance(one, Tensor) and one.layout is torch.strided and not one.is_meta
    ]
    return [*bit_sums(packed(dense)), *(one for one in found if not isinstance(one, Tensor))]


def unsaved_versions(progress: Progress) -> list[Any]:
    """What changes with every write to buffers of the models that no state holds (`persistent=False`)."""
    found: list[Any] = []
    for model in progress.models:
        saved = {id(tensor) for tensor in model.state_dict(keep_vars=True).values()}
        found.extend(_version(buffer) for buffer in model.buffers() if id(buffer) not in saved)
    return found


def _version(tensor: Tensor) -> int:
    """How often it was written to; tensors of inference mode do not count that."""
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001 - torch's own name for a documented idea


def _place(tensor: Tensor) -> int:
    return tensor.data_ptr() if tensor.layout is torch.strided else id(tensor)


def _versions(value: Any) -> Iterator[Any]:
    for one in _values(value):
        yield (_place(one), _version(one)) if isinstance(one, Tensor) else one


def _values(value: Any) -> Iterator[Any]:
    """The tensors and plain values in containers."""
    if isinstance(value, Mapping):
        for one in value.values():
            yield from _values(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _values(one)
    elif isinstance(value, (Tensor, int, float, str, bool)) or value is None:
        yield value


def _copied(value: Any) -> Any:
    """A copy that shares tensors."""
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_copied(one) for one in value]) if type(value) in (list, tuple) else value
    return value
