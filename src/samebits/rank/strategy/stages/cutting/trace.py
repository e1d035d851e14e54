"""A watched forward of a model: where it may be cut into stages, and which layers and parameters are between the cuts.

A model may be cut before a layer's call when everything that was computed from parameters so far and is needed later,
by whatever, goes into that call. A skip connection around the call, or a value that is used later, forbids it. So models may
have any form: `nn.Sequential`, lists of blocks, and any `forward` are treated alike. What depends only on the batch (a
mask, positions) may be used on both sides: every stage computes it again.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointFunction

from samebits.machine.torch_private import saved_tensors_hooks
from samebits.rank.strategy.stages.cutting.watch import OperationClock, Watch, memory_of
from samebits.rank.strategy.stages.replaced_method import replace_method
from samebits.rank.strategy.stages.results import arguments, tensors_of


@dataclass
class Entered:
    """A call of a layer."""

    module: str
    number: int
    """Which call of the layer, from 1."""
    begin: int
    leaves: list[Any]
    objection: str
    """Why no stage can begin with it (it is inside a checkpointed part); else empty."""
    end: int = -1
    depends: bool = False
    """Whether it uses parameters, or anything computed from them."""


@dataclass
class CallsOfLayers:
    """The calls, collected while `watch` sees the operations."""

    watch: Watch
    entered: list[Entered] = field(default_factory=list)
    _counts: dict[str, int] = field(default_factory=dict)
    _checkpoints: list[Any] = field(default_factory=lambda: [_saves_by()])
    """What saved tensors for backward so far; activation checkpointing uses a new pair of hooks each time."""

    def collect(self, model: nn.Module) -> Callable[[], None]:
        """Begin to collect; call what is returned to end."""
        undo = [replace_method(module, "_call_impl", self._seen(name, module)) for name, module in _layers(model)]

        def end() -> None:
            for one in reversed(undo):
                one()

        return end

    def _seen(self, name: str, module: nn.Module) -> Callable[..., Any]:
        inner: Callable[..., Any] = module._call_impl  # noqa: SLF001 - what runs the user's hooks and `forward`

        def called(*args: Any, **kwargs: Any) -> Any:
            call = self._enter(name, module, arguments(args, kwargs))
            result = inner(*args, **kwargs)
            self.watch.event += 1
            call.end = self.watch.event
            call.depends = call.depends or any(self.watch.life(tensor) is not None for tensor in tensors_of(result))
            return result

        return called

    def _enter(self, name: str, module: nn.Module, leaves: list[Any]) -> Entered:
        self.watch.event += 1
        saves = _saves_by()
        is_known = any(saves is other for other in self._checkpoints)
        number = self._counts[name] = self._counts.get(name, 0) + 1
        objection = _IN_REENTRANT if _in_reentrant_checkpoint() else ""
        if is_known and saves is not self._checkpoints[0]:
            objection = "it is inside a checkpointed part of the model"
        call = Entered(name, number, self.watch.event, leaves, objection)
        if not is_known:
            self._checkpoints.append(saves)
        self.entered.append(call)
        own = [tensor for tensor in module._parameters.values() if isinstance(tensor, Tensor)]  # noqa: SLF001
        call.depends = self.watch.touch(own)
        return call


def _layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, module) for name, module in model.named_modules() if name]


_IN_REENTRANT = (
    "it is inside a part that is checkpointed with use_reentrant=True (pass use_reentrant=False to let that part begin "
    "a stage)"
)


def _in_reentrant_checkpoint() -> bool:
    """Whether it is inside one, which computes layers outside the graph: what arrives there would get no gradient."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code is CheckpointFunction.forward.__code__:
            return True
        frame = frame.f_back
    return False


def _saves_by() -> Any:
    """The innermost hooks for what autograd saves, if any."""
    hooks = saved_tensors_hooks(True)
    return hooks and hooks[0]


@dataclass(frozen=True)
class Candidate:
    """A call before which the model may be cut."""

    module: str
    number: int
    """Which call of the layer in a forward, from 1."""
    label: str
    """Its name in messages and in `cut=`: the layer, and which call if there are several, as in "block:3"."""
    carried: tuple[int, ...]
    """Which of the call's flattened arguments must be sent: those that depend on parameters, each once."""
    event: int
    is_narrow: bool = True
    """Whether the call is the last to need some of it. Otherwise what is computed next needs all of it too (a branch,
    which another step may not take)."""


@dataclass(frozen=True)
class Call:
    """A call of a layer, from its first to its last event."""

    module: str
    begin: int
    end: int
    depends: bool
    """Whether it uses parameters, or anything computed from them."""


@dataclass(frozen=True)
class Trace:
    """The findings from a forward."""

    candidates: tuple[Candidate, ...]
    calls: tuple[Call, ...]
    parameters: Mapping[str, tuple[int, ...]]
    """The events in which each parameter was used, by name."""
    written: Mapping[str, tuple[int, ...]]
    """The same for the buffers that were written."""
    constants: Mapping[str, tuple[int, ...]]
    """The same for the buffers that were not; for an unused one, its layer's calls."""
    around: Mapping[str, str]
    """Labels of calls before which the model cannot be cut, with the reason."""
    cast_once: Mapping[str, tuple[int, ...]]
    """When autocast copied a parameter that several operations then used: it adds their gradients in its dtype."""
    is_reentrant: bool = False
    """Whether a part is checkpointed with use_reentrant=True: its backward goes through parameters separately."""


@dataclass(frozen=True)
class Traced:
    """A watched forward: its result, the trace, and what would be sent at each candidate."""

    result: Any
    trace: Trace
    sent: tuple[tuple[Tensor, ...], ...]
    end: int
    """The last event."""


def traced(
    model: nn.Module,
    forward: Callable[[], Any],
    clock: OperationClock,
    streams: Callable[[], Sequence[Tensor]],
    copies: Mapping[int, str] = MappingProxyType({}),
) -> Traced:
    """Call `forward`, which calls the layers of `model` once, and watch it without changing anything.

    Args:
        model: the layers.
        forward: calls them.
        streams: returns the states of torch's random streams.
        copies: parameters' names by the identity of their copies; may grow during the call.

    Raises: whatever the model raises.
    """
    parameters = {id(tensor): name for name, tensor in model.named_parameters()}
    # Copies show by their bits which buffers the forward writes to.
    buffers = {name: (tensor, tensor.clone()) for name, tensor in model.named_buffers()}
    named = parameters | {id(tensor): name for name, (tensor, _) in buffers.items()}
    watch = Watch(named, clock, streams, copies)
    calls = CallsOfLayers(watch)
    end = calls.collect(model)
    try:
        with watch:
            result = forward()
    finally:
        end()
    watch.event += 1
    watch.touch(tensors_of(result))
    return _conclude(model, result, watch, calls.entered, buffers)


def _conclude(
    model: nn.Module,
    result: Any,
    watch: Watch,
    entered: Sequence[Entered],
    buffers: Mapping[str, tuple[Tensor, Tensor]],
) -> Traced:
    uses = {name: tuple(events) for name, events in watch.uses.items()}
    constant = {name: uses.pop(name, ()) for name in _constants(model, buffers)}
    for name, (old, _) in buffers.items():
        now = dict(model.named_buffers())[name]
        # The module replaced the buffer, and used the new one.
        if now is not old and id(now) in watch.touched:
            uses[name] = (*uses.get(name, ()), watch.touched[id(now)])
    own: dict[str, list[int]] = {}
    for call in entered:
        own.setdefault(call.module, []).extend((call.begin, call.end))
    candidates, around, sent = _candidates(entered, watch)
    casts = [life for life in watch.lives.values() if life.cast_of and life.num_uses > 1]
    trace = Trace(
        candidates=tuple(candidates),
        calls=tuple(Call(call.module, call.begin, call.end, call.depends) for call in entered),
        parameters={name: events for name, events in uses.items() if name not in buffers},
        written={name: events for name, events in uses.items() if name in buffers},
        constants={
            name: events or tuple(own.get(name.rpartition(".")[0], ())) for name, events in sorted(constant.items())
        },
        around=around,
        cast_once={name: tuple(c.made for c in casts if c.cast_of == name) for name in {c.cast_of for c in casts}},
    )
    return Traced(result, trace, tuple(sent), watch.event)


def _constants(model: nn.Module, buffers: Mapping[str, tuple[Tensor, Tensor]]) -> list[str]:
    """The buffers that were not written to; sparse ones are constants, such as the adjacency of a graph."""
    now = dict(model.named_buffers())
    return [
        name
        for name, (old, value) in buffers.items()
        if now[name] is old and (old.layout is not torch.strided or torch.equal(old, value))
    ]


def _candidates(
    entered: Sequence[Entered], watch: Watch
) -> tuple[list[Candidate], dict[str, str], list[tuple[Tensor, ...]]]:
    """Find where a cut is possible, why not elsewhere, and what would be sent.

    Of calls that begin with the same values, only the outermost counts.
    """
    counts = Counter(call.module for call in entered)
    candidates: list[Candidate] = []
    sent: list[tuple[Tensor, ...]] = []
    around: dict[str, str] = {}
    for call in entered:
        label = call.module if counts[call.module] == 1 else f"{call.module}:{call.number}"
        leaves = {
            id(leaf): n
            for n, leaf in reversed(list(enumerate(call.leaves)))
            if isinstance(leaf, Tensor) and watch.life(leaf)
        }
        carried = tuple(sorted(leaves.values()))
        around[label] = _objection(call, [call.leaves[n] for n in carried], watch)
        if not around[label] and candidates and not _made_between(watch, candidates[-1].event, call.begin):
            around[label] = f"{candidates[-1].label} begins with the same values"
        if not around[label]:
            into = tuple(call.leaves[number] for number in carried)
            is_narrow = any(life.used <= call.end for tensor in into if (life := watch.life(tensor)) is not None)
            candidates.append(Candidate(call.module, call.number, label, carried, call.begin, is_narrow))
            sent.append(into)
    return candidates, {label: why for label, why in around.items() if why}, sent


def _made_between(watch: Watch, begin: int, end: int) -> bool:
    return any(begin < life.made < end for life in watch.lives.values())


def _objection(call: Entered, carried: Sequence[Tensor], watch: Watch) -> str:
    """Why the model cannot be cut before a call; empty when it can."""
    # Whatever is needed later must go into the call, or the next stage would not have it.
    inside = set(map(id, carried))
    past = [life for life in watch.alive(call.begin) if id(life.tensor) not in inside]
    if call.objection:
        return call.objection
    if past:
        return f"a value of shape {tuple(past[0].tensor.shape)} goes around it (a skip connection)"
    if not carried:
        return "nothing computed from parameters goes into it"
    if len(set(map(memory_of, carried))) < len(carried):
        return "two of its arguments share memory"
    if any(tensor._is_view() and watch.written.get(memory_of(tensor), 0) > call.begin for tensor in carried):  # noqa: SLF001
        return "its input is a view that is written to later, whose gradients autograd adds in a different order"
    return ""
