"""The calls of a model's layers in one forward, in order, with what went in and came out.

This uses no hooks: torch's fast path for attention refuses layers that have any, which changes the bits.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointFunction

from lockstep.machine.torch_private import saved_tensors_hooks
from lockstep.rank.strategy.stages.call_arguments import arguments
from lockstep.rank.strategy.stages.cutting.watch import Watch
from lockstep.rank.strategy.stages.replaced_method import replace_method
from lockstep.rank.strategy.stages.result_tree import tensors_of


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
