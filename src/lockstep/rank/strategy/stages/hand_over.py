"""What joins the graphs of two stages: a call of the model, and the functions whose backward exchanges gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


@dataclass
class Call:
    """One call of the model."""

    number: int
    is_in_lane: bool = False
    """Whether it is made in a lane, so that a backward may follow."""
    handed: list[Tensor] = field(default_factory=list)
    """What went to the next stage, with its graph: first activations, then lent parameters."""
    flags: list[bool] = field(default_factory=list)
    """Which of `handed` need a gradient."""
    borrowed: list[Tensor] = field(default_factory=list)
    """The parameters that came with the activations, for a backward that computes layers again."""
    owes: bool = False
    """Whether the previous stage handed over something that needs gradients."""
    backwards: int = 0
    """The number of backwards since; each sends and receives gradients once."""
    gave: bool = False
    took: bool = False

    def forget(self) -> None:
        """Forget everything: the lane is over, and nothing goes back through this call any more."""
        self.handed, self.borrowed = [], []


class Exchange(Protocol):
    """What sends and receives a call's gradients."""

    def give_back(self, call: Call, gradients: Sequence[Tensor | None]) -> None:
        """Send gradients of what the previous stage handed over."""

    def get_back(self, call: Call) -> list[Tensor | None]:
        """Receive gradients of what `call` handed over, one for each tensor."""


def entered(exchange: Exchange, call: Call, flags: list[bool], values: list[Tensor]) -> list[Tensor]:
    """Return the values as inputs of this stage; their backward sends their gradients to the previous stage."""
    call.owes = any(flags)
    return _joined(_Enter, exchange, call, flags, values)


def left(exchange: Exchange, call: Call, flags: list[bool], values: list[Tensor]) -> list[Tensor]:
    """Return the model's result on an earlier stage; its backward receives gradients of what was handed over."""
    return _joined(_Leave, exchange, call, flags, values, *call.handed)


def _joined(
    function: Any, exchange: Exchange, call: Call, flags: list[bool], values: list[Tensor], *inputs: Tensor
) -> list[Tensor]:
    if not any(flags):
        return values
    # without an input that requires grad there would be no backward
    root = torch.empty(0, requires_grad=True, device="cpu")
    return list(function.apply(exchange, call, flags, values, root, *inputs))


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, exchange: Exchange, call: Call, flags: list[bool], values: list[Tensor], _: Tensor) -> Any:
        ctx.exchange, ctx.call = exchange, call
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(value for value, flag in zip(values, flags, strict=True) if not flag))
        return tuple(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        ctx.exchange.give_back(ctx.call, gradients)
        return (None,) * 5


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        exchange: Exchange,
        call: Call,
        flags: list[bool],
        values: list[Tensor],
        _: Tensor,
        *handed: Tensor,
    ) -> Any:
        ctx.exchange, ctx.call, ctx.num_handed = exchange, call, len(handed)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(value for value, flag in zip(values, flags, strict=True) if not flag))
        return tuple(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Tensor | None) -> Any:
        gradients: list[Tensor | None] = [None] * ctx.num_handed
        if any(ctx.call.flags):
            gradients = ctx.exchange.get_back(ctx.call)
        return (None, None, None, None, None, *gradients)
