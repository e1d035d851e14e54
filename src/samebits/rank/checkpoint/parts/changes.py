"""Whether a script has changed what a state holds, or what none holds, since some place.

Ranks that resume there run the script from that place again. What the script changed there by itself (weights before
the lanes, an average) it would change a second time. Small things are copied, so that a state has them as they
were, tracked objects and `run.state` too; for the others torch's version counters show it.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter, is_
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from samebits.rank.checkpoint.parts.optimizers import optimizers_of
from samebits.rank.checkpoint.parts.part import MADE
from samebits.rank.checkpoint.parts.schedulers import schedulers_of
from samebits.rank.position.loop_state import LoopState
from samebits.rank.strategy.agreement import bit_sums, packed

_written = attrgetter("_version")
_PLAIN = frozenset({bool, int, float, str, type(None)})
MOST_BYTES = 1 << 22
"""Of arrays that are copied in each step. Larger tensors are shared, and looked at like weights."""


@dataclass(frozen=True)
class Small:
    """Copies of what is small."""

    states: Mapping[str, Any]
    """Of schedulers and the run's own objects, by label."""
    options: list[list[dict[str, Any]]]
    """Of each optimizer's groups: learning rates and the like."""
    values: Mapping[str, Any]
    """`run.state`."""
    tracked: Mapping[str, Any]
    """States of tracked objects by name; not of modules, which are looked at like weights."""
    shared: Sequence[Tensor] = ()
    """Tensors in `values` and `tracked` that are too large to be copied."""
    objection: str = ""
    """Why there are no copies."""

    def is_like(self, other: Small) -> bool:
        """Whether states and options are the same; not, where nobody can know."""
        try:
            return bool((self.states, self.options) == (other.states, other.options)) and not self.objection
        except Exception:  # noqa: BLE001 - tensors are compared element by element, other objects as they like
            return False

    @classmethod
    def of(cls, loop_state: LoopState) -> Small:
        states = {
            label: one.state_dict()
            for label, one in (*schedulers_of(loop_state), *loop_state.prepared.stateful.items())
        }
        if loop_state.schedulers.num and (made := loop_state.schedulers.record()):
            states[MADE] = made
        options = [
            [_copied({key: value for key, value in group.items() if key != "params"}) for group in one.param_groups]
            for _, one in optimizers_of(loop_state)
        ]
        what, copies = "a scheduler", Copies()
        try:
            kept = copy.deepcopy(states) if states else {}
            what = "what is tracked or in run.state"
            values = copies.of(vars(loop_state.values))
            tracked = {
                name: copies.of(thing.state_dict())
                for name, thing in loop_state.prepared.tracked.items()
                if not isinstance(thing, nn.Module)
            }
            return cls(kept, options, values, tracked, copies.shared)
        except Exception as error:  # noqa: BLE001 - an object of the script may hold anything
            return cls({}, options, {}, {}, (), f"{what} cannot be copied ({type(error).__name__}: {error})")


@dataclass
class Copies:
    """Deep copies of values, for as long as few bytes of arrays are in them."""

    shared: list[Tensor] = field(default_factory=list)
    """Tensors that were not copied."""
    num_bytes: int = 0

    def of(self, value: Any) -> Any:
        """A copy.

        Raises:
            Exception: for what cannot be copied.
        """
        kind = type(value)
        if kind in _PLAIN:  # almost all, in every step
            return value
        if kind is dict:
            return {key: one if type(one) in _PLAIN else self.of(one) for key, one in value.items()}
        if kind is list or kind is tuple:
            return kind([one if type(one) in _PLAIN else self.of(one) for one in value])
        if isinstance(value, Tensor):
            if value.layout is not torch.strided:
                raise TypeError(f"a tensor is {value.layout}")
            if not self._has_room(value.numel() * value.element_size()):
                self.shared.append(value)
                return value
            return value.detach().clone()
        if isinstance(value, np.ndarray) and not self._has_room(value.nbytes):
            raise MemoryError(f"arrays in it have more than {MOST_BYTES >> 20} MB")
        return copy.deepcopy(value)

    def _has_room(self, num_bytes: int) -> bool:
        if self.num_bytes + num_bytes > MOST_BYTES:
            return False
        self.num_bytes += num_bytes
        return True


class Versions:
    """What changes with every write that torch counts to what is large.

    A step asks for it with cold caches, so that what is there is looked up once, and again when an object was replaced.
    Let the run's members follow the models first.
    """

    def __init__(self, loop_state: LoopState) -> None:
        self._loop_state, self._members = loop_state, loop_state.prepared.members
        self._counts = -1, True
        """Whether all of these members count writes; tensors of inference mode do not."""
        self._states: WeakKeyDictionary[Optimizer, tuple[list[Any], list[Tensor], list[Any]]] = WeakKeyDictionary()
        """The values in each optimizer's state, sorted."""

    def of_lanes(self) -> list[Any]:
        """Of what lanes may write to as well, and is put back after each: buffers."""
        return list(self._versions_of(self._members.buffers))

    def of_updates(self) -> list[Any]:
        """Of what an update writes to, and no lane: weights and the states of optimizers. 0.1 ms for 600 of 32 x 32."""
        found: list[Any] = self._versions_of(self._members.parameters)
        for _, optimizer in optimizers_of(self._loop_state):
            values = list(_parts(optimizer.state.values()))
            tensors, others = self._sorted(optimizer, values)
            found += [list(map(Tensor.data_ptr, tensors)), list(map(_written, tensors))]
            found.extend(chain.from_iterable(map(_versions, others)))
        for module in _modules(self._loop_state):
            found.extend(_looked_at(module))
        return found

    def _sorted(self, optimizer: Optimizer, values: list[Any]) -> tuple[list[Tensor], list[Any]]:
        """The tensors among the values of a state that count writes, and what else there is."""
        known, tensors, others = self._states.get(optimizer, ([], [], []))
        if len(known) != len(values) or not all(map(is_, known, values)):
            tensors = [value for value in values if type(value) is Tensor and not value.is_inference()]
            counted = {*map(id, tensors)}
            others = [value for value in values if id(value) not in counted]
            self._states[optimizer] = values, tensors, others
        return tensors, others

    def _versions_of(self, tensors: Sequence[Tensor]) -> list[int]:
        if self._counts[0] != self._members.number:
            each = (*self._members.parameters, *self._members.buffers)
            self._counts = self._members.number, not any(one.is_inference() for one in each)
        return list(map(_written if self._counts[1] else _version, tensors))


class Bits:
    """The same by bits, however they are written: `p.data.mul_(2)` is a write that nobody counts."""

    def __init__(self, loop_state: LoopState) -> None:
        self._loop_state = loop_state

    def of_lanes(self) -> list[Any]:
        """See `Versions`."""
        return _bits([buffer for model in self._loop_state.prepared.models for buffer in model.buffers()])

    def of_updates(self) -> list[Any]:
        """See `Versions`."""
        found: list[Any] = [parameter for model in self._loop_state.prepared.models for parameter in model.parameters()]
        for _, optimizer in optimizers_of(self._loop_state):
            for state in optimizer.state.values():
                found.extend(_values(state))
        for module in _modules(self._loop_state):
            found.extend(_values(module.state_dict()))
        return _bits(found)


def bits_of(loop_state: LoopState) -> list[Any]:
    """What changes with the bits of what is large: weights, buffers, optimizer states, tracked objects."""
    bits, tracked = Bits(loop_state), loop_state.prepared.tracked.values()
    others = [one for thing in tracked if not isinstance(thing, nn.Module) for one in _values(thing.state_dict())]
    return [*bits.of_updates(), *bits.of_lanes(), *_bits(others)]


def versions_of(tensors: Sequence[Tensor], *, by_bits: bool) -> list[Any]:
    """What changes with every write to one of them, or with their bits."""
    return _bits(tensors) if by_bits else [*_versions(tensors)]


def _modules(loop_state: LoopState) -> list[nn.Module]:
    """Those that are tracked."""
    return [thing for thing in loop_state.prepared.tracked.values() if isinstance(thing, nn.Module)]


def _looked_at(module: nn.Module) -> list[Any]:
    """Of a tracked module: how often its parameters were written to, and the bits of its buffers, which lanes write to and
    which are put back.
    """
    own = {_place(parameter) for parameter in module.parameters()}
    values = list(_values(module.state_dict()))
    large = [one for one in values if isinstance(one, Tensor) and _place(one) in own]
    counted = set(map(id, large))
    return [*_versions(large), *_bits([one for one in values if id(one) not in counted])]


def _bits(found: Sequence[Any]) -> list[Any]:
    dense = [
        one.detach() for one in found if isinstance(one, Tensor) and one.layout is torch.strided and not one.is_meta
    ]
    return [*bit_sums(packed(dense)), *(one for one in found if not isinstance(one, Tensor))]


def _parts(states: Collection[Any]) -> Iterable[Any]:
    """What the states of parameters consist of."""
    # [Note: why all states are looked at together]
    # They are plain dictionaries almost always: for 600 parameters 600 calls less in each step.
    if {dict}.issuperset(map(type, states)):
        return chain.from_iterable(map(dict.values, states))
    return chain.from_iterable(one.values() if isinstance(one, dict) else (one,) for one in states)


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
    if type(value) in _PLAIN:  # almost all, in every step
        return value
    if isinstance(value, dict):
        return {key: one if type(one) in _PLAIN else _copied(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_copied(one) for one in value]) if type(value) in (list, tuple) else value
    return value
