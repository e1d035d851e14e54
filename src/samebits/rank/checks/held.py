"""What a look leaves out, because every state of the run holds it, and what it looks at as a whole."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from samebits.rank.look.observation import Prepared
from samebits.rank.look.reading import dictionary_of
from samebits.rank.position.loop_state import LoopState


def prepared_of(run: Any, loop_state: LoopState, *, between_lanes: bool) -> Prepared:
    """What `run` has prepared. Between steps all is left out that states hold; a lane must not change what is tracked either.

    Args:
        run: the object itself, which a variable of the script may name.
        loop_state: its.
        between_lanes: whether the look is around a lane.
    """
    prepared, values = loop_state.prepared, vars(loop_state.values)
    # Their buffers are put together behind the lanes, as those of models.
    modules = {name: one for name, one in prepared.tracked.items() if issubclass(type(one), nn.Module)}
    held = [*_GLOBAL, run, loop_state.values, *parts_of([*prepared.models, *modules.values()], loop_state.known)]
    others = [(f"{type(one.dataset).__name__}, the data set", dictionary_of(one.dataset)) for one in prepared.loaders]
    models = [(f"model{number or ''}", model) for number, model in enumerate(prepared.models)]
    if between_lanes:
        others += [(f"run.state.{name}", value) for name, value in values.items()]
        models += modules.items()
        # The counters of Accelerate and the Trainer change in a lane by design.
        tracked = prepared.tracked if loop_state.looks.counts_lanes else {}
        others += [
            (f"{name}, which is tracked", dictionary_of(one))
            for name, one in tracked.items()
            if name not in modules and not any(one is kept for kept in prepared.per_lane)
        ]
    else:
        held += values.values()
    optimizers = [one for one in prepared.taken if issubclass(type(one), Optimizer)]
    parts = [module for model in prepared.models for module in model.modules()]
    # Buffers that are not persistent are in no state, although their module is; lanes may write to them as to others.
    unsaved = {id(one._buffers[name]) for one in parts for name in one._non_persistent_buffers_set}  # noqa: SLF001
    return Prepared(
        frozenset(map(id, held)) - (frozenset() if between_lanes else unsaved),
        tuple(models),
        tuple((f"optimizer{number or ''}", one) for number, one in enumerate(optimizers)),
        tuple(others),
        tuple(_owned(prepared, [*parts, *optimizers])),
    )


def _owned(prepared: Any, things: Sequence[Any]) -> list[tuple[Any, frozenset[str]]]:
    """What prepared things, and a library's loop around them, call of the script, each once, with attributes that states hold."""
    hooks = [one for thing in things for key, one in vars(thing).items() if key.endswith("_hooks") and one]
    called = [one.collate_fn for one in prepared.loaders] + [one for of_kind in hooks for one in of_kind.values()]
    called = [*prepared.of_library(), *((one, frozenset()) for one in called)]
    bound = [(part, names) for one, names in called for part in _PARTS_OF_CALLS.get(type(one), lambda one: [one])(one)]
    return [*{id(one): (one, names) for one, names in bound}.values()]


_PARTS_OF_CALLS: dict[type, Callable[[Any], list[Any]]] = {
    functools.partial: lambda one: [getattr(one.func, "__self__", one.func), *one.args, *one.keywords.values()],
    MethodType: lambda one: [one.__self__],
}
_GLOBAL = (torch.default_generator, random._inst, np.random.mtrand._rand)  # noqa: SLF001
"""Every state holds these."""


def parts_of(models: Sequence[nn.Module], known: Sequence[Any]) -> list[Any]:
    """What every state holds, as a script's variables name it: models, optimizers, and what they are made of.

    `for group in optimizer.param_groups: group["lr"] = ...` leaves a group in a variable.
    """
    found = [*known]
    for module in (module for model in models for module in model.modules()):
        tensors = [*module._parameters.values(), *module._buffers.values()]  # noqa: SLF001 - torch's own names
        found += [module, *tensors, *(tensor.grad for tensor in tensors if tensor is not None and tensor.is_leaf)]
    for optimizer in (one for one in known if issubclass(type(one), Optimizer)):
        found += [
            optimizer.param_groups,
            *optimizer.param_groups,
            *(group["params"] for group in optimizer.param_groups),
            *(value for group in optimizer.param_groups for value in group.values() if issubclass(type(value), Tensor)),
        ]
        states = [*optimizer.state.values()]
        found += [optimizer.state, *states]
        found += [value for state in states if issubclass(type(state), dict) for value in state.values()]
    return found
