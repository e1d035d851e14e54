"""Where parameters land when a model moves to a GPU: each in its place in flat memory at once.

Moved by `model.to(device)` and laid out after that, a model would be there twice for a moment, and one of more than half
the card would not fit. `model.to` still does the moving, because modules may do more in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lockstep.rank.strategy.replica.arena import Segment, alias, lay_out
from lockstep.rank.strategy.replica.private_memory import private_zeros


class Landing(TorchFunctionMode):
    """While it is active, `parameter.to(device)` of the model's parameters returns them as they lie in flat memory.

    Args:
        model: not on the device yet.
        device: where it moves.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        super().__init__()
        self._device = device
        moving = {id(one): one for one in _left_alone(model) if one.device != device and one.numel()}
        segments, self._flats = lay_out(list(moving.values()), private_zeros, place=lambda _: device)
        self._segments = dict(zip(moving, segments, strict=True))
        self._landed: dict[int, tuple[int, torch.Size, tuple[int, ...]]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        segment = self._segments.get(id(args[0])) if func is Tensor.to and args else None
        if segment is None or not self._only_moves(args[1:], kwargs or {}):
            return func(*args, **(kwargs or {}))
        landed = alias(self._flats[segment.flat], segment.offset, args[0])
        self._landed[id(args[0])] = landed.data_ptr(), landed.shape, landed.stride()
        return landed

    def _only_moves(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the arguments of `to` are the device, and no dtype or memory format."""
        others = [one for one in (*args[1:], *kwargs.values()) if one is not None and not isinstance(one, bool)]
        return bool(args) and args[0] == self._device and not others

    def unmoved(self, parameters: Sequence[nn.Parameter]) -> tuple[dict[int, Segment], list[Tensor]]:
        """As of `ParameterArena`: the segments, by number, of those that are where they landed, and the flats."""
        kept = {
            number: self._segments[id(one)]
            for number, one in enumerate(parameters)
            if self._landed.get(id(one)) == (one.data_ptr(), one.shape, one.stride())
        }
        return kept, self._flats if kept else []


def _left_alone(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that nothing but `model.to` moves: recurrent layers, for one, put theirs together for cuDNN."""
    own = {id(one) for module in model.modules() if _moves_itself(module) for one in module.parameters(recurse=False)}
    return [one for one in model.parameters() if id(one) not in own and type(one.data) is Tensor]


def _moves_itself(module: nn.Module) -> bool:
    """Whether its class has replaced what `to` calls for each module."""
    owner = next(one for one in type(module).__mro__ if "_apply" in vars(one))
    return owner is not nn.Module
