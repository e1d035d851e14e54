"""One forward of a model, watched: where it may be cut into stages, and which layers and parameters lie between the cuts.

A model may be cut before the call of a layer when everything that was computed from parameters so far and is needed
later goes into that call. A residual connection around the call, a skip connection, or a value kept aside forbid it.
So no form of model is asked for: `nn.Sequential`, lists of blocks, and any `forward` are treated alike. What depends on
the batch alone (a mask, positions) may be used on both sides: every stage computes it again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.torch_private import TorchDispatchMode, pytree, saved_tensors_hooks


@dataclass(frozen=True)
class Place:
    """A call before which the model may be cut."""

    module: str
    carried: tuple[int, ...]
    """Which of the call's flattened arguments must be sent: those that depend on parameters."""
    event: int


@dataclass(frozen=True)
class Call:
    """A call of a layer, from its begin to its end in events."""

    module: str
    begin: int
    end: int
    depends: bool
    """Whether it uses parameters, or what was computed from them."""


@dataclass(frozen=True)
class Trace:
    """What a forward showed."""

    places: tuple[Place, ...]
    calls: tuple[Call, ...]
    uses: Mapping[str, tuple[int, ...]]
    """The events in which each parameter or written buffer was used, by name."""
    constants: Mapping[str, tuple[int, ...]]
    """The same of the buffers that were not written; for one that was not used, its layer's calls."""
    around: Mapping[str, str]
    """Layers before which the model cannot be cut, with the reason."""


def arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """The leaves of a call's arguments, in a fixed order."""
    leaves: list[Any] = pytree.tree_leaves((args, dict(kwargs)))
    return leaves


def replace_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], replaced: Mapping[int, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with some leaves replaced, by number."""
    leaves, form = pytree.tree_flatten((args, dict(kwargs)))
    new_args, new_kwargs = pytree.tree_unflatten([replaced.get(n, leaf) for n, leaf in enumerate(leaves)], form)
    return new_args, new_kwargs


@dataclass
class _Life:
    """A tensor that depends on parameters: when it was made and last used."""

    tensor: Tensor
    made: int
    used: int


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operation of a forward, also those inside custom functions and checkpoints."""

    def __init__(self, named: Mapping[int, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._named = named
        self.event = 0
        self.lives: dict[int, _Life] = {}
        self.uses: dict[str, list[int]] = {}
        self.touched: dict[int, int] = {}
        """The last event in which each tensor was used, by identity."""
        self._tainted: dict[int, int] = {}
        """Memory that holds what was computed from parameters, since which event."""
        self._kept: list[Any] = []

    def __torch_dispatch__(
        self, func: Callable[..., Any], _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.event += 1
        depends = self.touch(_tensors((args, kwargs or {})))
        for tensor in _tensors(result):
            self._kept.append(tensor)  # so that no identity is used again
            if depends and id(tensor) not in self._named:
                self._tainted.setdefault(_memory(tensor), self.event)
                self.lives.setdefault(id(tensor), _Life(tensor, self.event, self.event))
        return result

    def touch(self, inputs: Sequence[Tensor]) -> bool:
        """These are used now; whether any of them depends on parameters."""
        depends = False
        for tensor in inputs:
            self.touched[id(tensor)] = self.event
            if (name := self._named.get(id(tensor))) is not None:
                self.uses.setdefault(name, []).append(self.event)
                depends = depends or isinstance(tensor, nn.Parameter)
            elif (life := self.life(tensor)) is not None:
                life.used = self.event
                depends = True
        return depends

    def life(self, tensor: Tensor) -> _Life | None:
        """What is known of a tensor; None when it does not depend on parameters."""
        since = self._tainted.get(_memory(tensor))
        if id(tensor) not in self.lives and since is not None:
            self._kept.append(tensor)
            self.lives[id(tensor)] = _Life(tensor, since, since)
        return self.lives.get(id(tensor))

    def alive(self, event: int) -> Iterator[_Life]:
        """What was made before `event` and is used after it."""
        return (life for life in self.lives.values() if life.made < event < life.used)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _memory(tensor: Tensor) -> int:
    pointer: int = tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)  # noqa: SLF001
    return pointer


@dataclass
class _Entered:
    module: str
    begin: int
    leaves: list[Any]
    is_again: bool
    """Whether it is inside of a checkpointed part, and not its first layer."""
    end: int = -1
    depends: bool = False
    made: list[Tensor] = field(default_factory=list)


@dataclass
class _Recorder:
    """The calls of layers, by hooks."""

    watch: _Watch
    entered: list[_Entered] = field(default_factory=list)
    _open: list[_Entered] = field(default_factory=list)
    _checkpoints: list[Any] = field(default_factory=lambda: [_saves_by()])
    """What saved tensors for backward so far; activation checkpointing does it by a new pair of hooks each time."""

    def hooks(self, model: nn.Module) -> list[Any]:
        handles = []
        for name, module in model.named_modules():
            if name:
                handles.append(module.register_forward_pre_hook(self._before(name), with_kwargs=True, prepend=True))
                handles.append(module.register_forward_hook(self._after))
        return handles

    def _before(self, name: str) -> Callable[..., None]:
        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.watch.event += 1
            saves = _saves_by()
            is_known = any(saves is other for other in self._checkpoints)
            call = _Entered(
                name, self.watch.event, arguments(args, kwargs), is_known and saves is not self._checkpoints[0]
            )
            if not is_known:
                self._checkpoints.append(saves)
            self.entered.append(call)
            self._open.append(call)
            own = [tensor for tensor in module._parameters.values() if tensor is not None]  # noqa: SLF001
            call.depends = self.watch.touch(own)

        return enter

    def _after(self, _module: nn.Module, _args: Any, result: Any) -> None:
        self.watch.event += 1
        call = self._open.pop()
        call.end = self.watch.event
        call.made = _tensors(result)
        call.depends = call.depends or any(self.watch.life(tensor) is not None for tensor in call.made)


def _saves_by() -> Any:
    """The innermost hooks for what autograd saves; None without any."""
    hooks = saved_tensors_hooks(True)
    return hooks and hooks[0]


def trace(model: nn.Module, forward: Callable[[], Any]) -> Trace:
    """Call `forward`, which calls the layers of `model` once, and watch. Side effects are the caller's concern.

    Raises: whatever the model raises.
    """
    named: dict[int, str] = {id(tensor): name for name, tensor in model.named_parameters()}
    buffers = {name: (tensor, tensor.clone()) for name, tensor in model.named_buffers()}
    watch = _Watch(named | {id(tensor): name for name, (tensor, _) in buffers.items()})
    recorder = _Recorder(watch)
    handles = recorder.hooks(model)
    try:
        with watch:
            result = forward()
    finally:
        for handle in handles:
            handle.remove()
    watch.event += 1
    watch.touch(_tensors(result))
    now = dict(model.named_buffers())
    constant = {name for name, (old, value) in buffers.items() if now[name] is old and _equal(old, value)}
    for name, (old, _) in buffers.items():
        if now[name] is not old and id(now[name]) in watch.touched:  # the module made itself a new one, and used it
            watch.uses.setdefault(name, []).append(watch.touched[id(now[name])])
    calls: dict[str, list[int]] = {}
    for call in recorder.entered:
        calls.setdefault(call.module, []).extend((call.begin, call.end))
    places, around = _places(recorder.entered, watch)
    return Trace(
        places=tuple(places),
        calls=tuple(Call(call.module, call.begin, call.end, call.depends) for call in recorder.entered),
        uses={name: tuple(events) for name, events in watch.uses.items() if name not in constant},
        constants={
            name: tuple(watch.uses.get(name) or calls.get(name.rpartition(".")[0]) or ()) for name in sorted(constant)
        },
        around=around,
    )


def _equal(left: Tensor, right: Tensor) -> bool:
    """Whether a buffer was not written to; sparse ones are constants, such as the adjacency of a graph."""
    return left.layout is not torch.strided or torch.equal(left, right)


def _places(entered: Sequence[_Entered], watch: _Watch) -> tuple[list[Place], dict[str, str]]:
    """Where a cut is possible (of calls that begin with the same values only the outermost), and why not elsewhere."""
    counts = Counter(call.module for call in entered)
    places: list[Place] = []
    around: dict[str, str] = {}
    for call in entered:
        carried = tuple(n for n, leaf in enumerate(call.leaves) if isinstance(leaf, Tensor) and watch.life(leaf))
        inside = {id(call.leaves[number]) for number in carried}
        kept = {id(tensor) for tensor in call.made}  # changed in place: who goes on has it from the call
        past = [
            life
            for life in watch.alive(call.begin)
            if id(life.tensor) not in inside or (life.used > call.end and id(life.tensor) not in kept)
        ]
        if counts[call.module] > 1:
            around[call.module] = "it is called several times in a forward"
        elif call.is_again:
            around[call.module] = "it is inside of a checkpointed part of the model"
        elif past:
            around[call.module] = f"a value of shape {tuple(past[0].tensor.shape)} goes around it (a skip connection)"
        elif not carried:
            around[call.module] = "nothing that was computed from parameters goes into it"
        elif places and not any(places[-1].event < life.made < call.begin for life in watch.lives.values()):
            around[call.module] = f"{places[-1].module} begins with the same values"
        else:
            places.append(Place(call.module, carried, call.begin))
    return places, around
