"""Hooks of the script that run in a backward and may look at parameters' gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from lockstep.machine.torch_private import global_backward_hooks, global_backward_pre_hooks

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
