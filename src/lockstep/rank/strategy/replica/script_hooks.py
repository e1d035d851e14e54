"""Hooks of the script that run in a backward and may look at parameters' gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from lockstep.machine.torch_private import global_backward_hooks, global_backward_pre_hooks
from lockstep.rank.strategy.agreement import INTEGERS
from lockstep.rank.strategy.replica.arena import Segment

_gradient_hooks = attrgetter("_post_accumulate_grad_hooks")
_module_hooks = attrgetter("_backward_hooks", "_backward_pre_hooks")


class ScriptHooks:
    """Those that are registered while a layout holds.

    Args:
        models: whose modules may have hooks.
        parameters: each of which has one hook of the engine.
        moves: for each of them, whether its gradient moves when it arrives. Others stay what they are until the lane's end,
            so only their own hooks, which may write to them, matter.
    """

    def __init__(
        self, models: Sequence[tuple[str, nn.Module]], parameters: Sequence[nn.Parameter], moves: Sequence[bool]
    ) -> None:
        self._models, self._parameters, self._moves = models, parameters, moves
        self._nodes: list[Node] = []
        """Autograd's nodes that add gradients up; kept, because else there may be another one at the next look."""
        self._others: list[Mapping[int, Any]] | None = None
        """The hooks of these, of modules and of all modules that there are, found at the first look."""

    def may_look(self) -> bool:
        """Whether there are any: of a parameter, of one or all modules, or of autograd's node that adds a gradient up."""
        if self._others is None:
            self._others = self._find()
        return any(map((1).__lt__, map(len, map(_gradient_hooks, self._parameters)))) or any(self._others)

    def _find(self) -> list[Mapping[int, Any]]:
        moved = [one for one, moves in zip(self._parameters, self._moves, strict=True) if moves]
        if not moved:
            return []
        self._nodes = [get_gradient_edge(one).node for one in moved]
        modules = [module for _, model in self._models for module in model.modules()]
        of_modules = [hooks for module in modules for hooks in _module_hooks(module)]
        return [*map(_hooks_of, self._nodes), *of_modules, global_backward_hooks, global_backward_pre_hooks]


def hook_first(parameter: nn.Parameter, hook: Callable[[Tensor], None]) -> Any:
    """Register `hook` before the script's own, which so see the same gradient whenever they were registered.

    A hook that writes into two gradients to which autograd gave one piece of memory would write twice before ours.
    """
    handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    hooks = _gradient_hooks(parameter)
    for other in [number for number in hooks if number != handle.id]:
        hooks[other] = hooks.pop(other)
    return handle


def _hooks_of(node: Node) -> Mapping[int, Any]:
    """The hooks of a node, now and later. They run after the parameter's."""
    handle = node.register_hook(lambda *_: None)
    hooks: Mapping[int, Any] | None = handle.hooks_dict_ref()
    handle.remove()
    return {} if hooks is None else hooks


Flags = np.ndarray[Any, Any]


def same_bits(left: Tensor, right: Tensor) -> bool:
    """Whether none differs. On a GPU, this waits for it."""
    return torch.equal(left.view(torch.uint8), right.view(torch.uint8))


def differs(left: Tensor, right: Tensor) -> Tensor:
    """For each element of two 1-D tensors whether it differs, on their device; for a complex one twice."""
    return _bits(left) != _bits(right)


def _bits(flat: Tensor) -> Tensor:
    real = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    return real.view(INTEGERS[real.element_size()])


def any_in(flags: Flags, flat: Tensor, segments: Sequence[Segment]) -> list[bool]:
    """For each segment of `flat`, in order, whether one of its `differs` is set. Between segments none is."""
    factor = flags.size // flat.numel()
    found: list[bool] = np.logical_or.reduceat(flags, [factor * segment.offset for segment in segments]).tolist()
    return found


def on_host(rows: Sequence[Tensor]) -> list[Flags]:
    """1-D tensors of one dtype and device as arrays, with one wait for it."""
    if not rows:
        return []
    whole = torch.cat([*rows]).cpu().numpy()
    return np.split(whole, np.cumsum([row.numel() for row in rows])[:-1])
