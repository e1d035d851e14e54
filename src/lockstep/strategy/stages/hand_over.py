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
    handed: list[Tensor] = field(default_factory=list)
    """What went to the next stage, with its graph: activations, then lent parameters."""
    flags: list[bool] = field(default_factory=list)
    """Which of `handed` need a gradient."""
    borrowed: list[Tensor] = field(default_factory=list)
    """The parameters that came with the activations, for a backward that computes layers again."""
    owes: bool = False
    """Whether the stage before handed over what needs gradients."""
    backwards: int = 0
    """How many backwards there were since; each gives and takes gradients once."""
    gave: bool = False
    took: bool = False

    def forget(self) -> None:
        """The lane is over: nothing goes back through this call any more."""
        self.handed, self.borrowed = [], []


class Exchange(Protocol):
    """Sends and receives gradients of a call."""

    def give_back(self, call: Call, gradients: Sequence[Tensor | None]) -> None:
        """Send gradients of what the stage before handed over."""

    def get_back(self, call: Call) -> list[Tensor | None]:
        """Receive gradients of what `call` handed over, one for each tensor."""


def entered(exchange: Exchange, call: Call, flags: list[bool], values: list[Tensor]) -> list[Tensor]:
    """The values as inputs of this stage; their backward sends their gradients to the stage before."""
    call.owes = any(flags)
    return _joined(_Enter, exchange, call, flags, values)


def left(exchange: Exchange, call: Call, flags: list[bool], values: list[Tensor]) -> list[Tensor]:
    """The model's result on a stage that is not the last; its backward receives gradients of what was handed over."""
    return _joined(_Leave, exchange, call, flags, values, *call.handed)


def _joined(
    function: Any, exchange: Exchange, call: Call, flags: list[bool], values: list[Tensor], *inputs: Tensor
) -> list[Tensor]:
    if not any(flags):
        return values
    root = torch.empty(0, requires_grad=True)  # without an input that needs a gradient there would be no backward
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
