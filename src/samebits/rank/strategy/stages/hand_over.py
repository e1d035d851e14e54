"""What joins the graphs of two stages: a call of the model, and the functions whose backward exchanges gradients."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from samebits.errors import UsageError
from samebits.rank.strategy.stages.tied_parameters import TiedParameters
from samebits.rank.transport.channel import Channel
from samebits.rank.transport.contract import Transport


@dataclass
class Call:
    """One call of the model."""

    number: int
    is_in_lane: bool = False
    """Whether it is made in a lane, so that a backward may follow."""
    sent: list[Tensor] = field(default_factory=list)
    """What went to the next stage, with its graph: first activations, then shared parameters."""
    flags: list[bool] = field(default_factory=list)
    """Which of `sent` need a gradient."""
    borrowed: list[Tensor] = field(default_factory=list)
    """The parameters that came with the activations, for a backward that computes layers again."""
    owes: bool = False
    """Whether the previous stage sent something that needs gradients."""
    backwards: int = 0
    """The number of backwards since; each sends and receives gradients once."""
    gave: bool = False
    took: bool = False

    def forget(self) -> None:
        """Forget everything: the lane is over, and nothing goes back through this call any more."""
        self.sent, self.borrowed = [], []


class Exchange(Protocol):
    """What sends and receives a call's gradients."""

    def give_back(self, call: Call, gradients: Sequence[Tensor | None]) -> None:
        """Send gradients of what the previous stage sent."""

    def get_back(self, call: Call) -> list[Tensor | None]:
        """Receive gradients of what `call` sent, one for each tensor."""


def entered(exchange: Exchange, call: Call, flags: list[bool], values: list[Tensor]) -> list[Tensor]:
    """Return the values as inputs of this stage; their backward sends their gradients to the previous stage."""
    call.owes = any(flags)
    return _joined(_Enter, exchange, call, flags, values)


def left(exchange: Exchange, call: Call, flags: list[bool], values: list[Tensor]) -> list[Tensor]:
    """Return the model's result on an earlier stage; its backward receives gradients of what was sent."""
    return _joined(_Leave, exchange, call, flags, values, *call.sent)


def _joined(
    function: Any, exchange: Exchange, call: Call, flags: list[bool], values: list[Tensor], *inputs: Tensor
) -> list[Tensor]:
    if not any(flags):
        return values
    # [Note: why a joined value has an empty root]
    # Autograd runs a function's backward only if one of its inputs requires grad. What arrives from another stage has no
    # graph here, so an empty tensor stands for it.
    root = torch.empty(0, requires_grad=True, device="cpu")
    return list(function.apply(exchange, call, flags, values, root, *inputs))


class _Joined(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, exchange: Exchange, call: Call, flags: list[bool], values: list[Tensor], _: Tensor, *sent: Tensor
    ) -> Any:
        ctx.exchange, ctx.call, ctx.num_sent = exchange, call, len(sent)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(value for value, flag in zip(values, flags, strict=True) if not flag))
        return tuple(values)


class _Enter(_Joined):
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        ctx.exchange.give_back(ctx.call, gradients)
        return (None,) * 5


class _Leave(_Joined):
    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Tensor | None) -> Any:
        gradients: list[Tensor | None] = [None] * ctx.num_sent
        if any(ctx.call.flags):
            gradients = ctx.exchange.get_back(ctx.call)
        return (None, None, None, None, None, *gradients)


ACTIVATIONS, GRADIENTS, RESULTS = 1, 2, 3
"""Tags of the three kinds of messages between the stages of a replica."""


Backward = tuple[int, int]
"""Which backward: the number of the model's call, and which backward since then, from 1."""


class Links:
    """The three channels between the stages of a replica.

    Args:
        transports: for activations, gradients and results; on GPUs they must be different, as NCCL keeps one order.
        device: where tensors arrive.
    """

    def __init__(self, transports: Sequence[Transport], device: torch.device) -> None:
        self.stage, self.num_stages = transports[0].rank, transports[0].world_size
        self._ahead, self._back, self._results = (
            Channel(transport, tag, device)
            for transport, tag in zip(transports, (ACTIVATIONS, GRADIENTS, RESULTS), strict=True)
        )
        self._early: dict[Backward, tuple[Any, list[Tensor]]] = {}
        self._waits: list[tuple[float, float]] = []

    def hand_over(self, words: Any, tensors: Sequence[Tensor]) -> None:
        """Send activations to the next stage."""
        self._ahead.send(self.stage + 1, words, tensors)

    def take_over(self) -> tuple[Any, list[Tensor]]:
        """Receive the previous stage's activations."""
        return self._waiting(self._ahead, self.stage - 1)

    def give_back(self, backward: Backward, gradients: Sequence[Tensor | None]) -> None:
        """Send gradients to the previous stage; None for what was not used."""
        present = [gradient is not None for gradient in gradients]
        self._back.send(self.stage - 1, [*backward, present], [g for g in gradients if g is not None])

    def get_back(self, backward: Backward) -> list[Tensor | None]:
        """Receive the gradients of what a call sent; those of other calls may come first."""
        # Autograd reaches calls in its own order, which may differ from the order in which the next stage sent.
        while backward not in self._early:
            (call, number, present), tensors = self._waiting(self._back, self.stage + 1)
            self._early[call, number] = (present, tensors)
        present, tensors = self._early.pop(backward)
        arrived = iter(tensors)
        return [next(arrived) if is_present else None for is_present in present]

    def publish(self, words: Any, tensors: Sequence[Tensor]) -> None:
        """Send the last stage's result to all others."""
        for stage in range(self.num_stages - 1):
            self._results.send(stage, words, tensors)

    def get_result(self) -> tuple[Any, list[Tensor]]:
        """Receive the last stage's result."""
        return self._waiting(self._results, self.num_stages - 1)

    def _waiting(self, channel: Channel, source: int) -> tuple[Any, list[Tensor]]:
        began = time.monotonic()
        message = channel.receive(source)
        self._waits.append((began, time.monotonic()))
        return message

    def take_waits(self) -> list[tuple[float, float]]:
        """Return when this stage waited for messages since the last call: begins and ends, in order."""
        waits, self._waits = self._waits, []
        return waits

    def flush(self) -> None:
        """Wait until everything sent is delivered."""
        for channel in (self._ahead, self._back, self._results):
            channel.flush()


class GradientExchange:
    """One stage's exchange of gradients. See `hand_over.Exchange`.

    Args:
        tied: for layers to find again in a backward, for activation checkpointing.
        model: what messages call the model.
    """

    def __init__(self, links: Links, tied: TiedParameters, model: str) -> None:
        self._links, self._tied, self._model = links, tied, model
        self._goes_back = False
        self.lacks = False
        """Whether the current backward got nothing for some of what was sent; it still reaches parameters."""

    @contextmanager
    def going_back(self, calls: Sequence[Call]) -> Iterator[None]:
        """A context for a backward of these calls. Each earlier stage gets a message per call, whatever it reaches."""
        for call in calls:
            call.backwards += 1
            call.gave = call.took = False
        self._goes_back, self.lacks = True, False
        if borrowed := next((call.borrowed for call in calls if call.borrowed), []):
            self._tied.use(borrowed)
        try:
            yield
            # [Note: one message for each call]
            # A backward may reach nothing of a call, and the stage before cannot know. It gets a message for every call that
            # sent something, an empty one if need be, so it never waits for one that does not come.
            for call in calls:
                if call.owes and not call.gave:
                    self.give_back(call, [])
            for call in calls:
                if any(call.flags) and not call.took:
                    self.get_back(call)
        finally:
            self._goes_back = False
            self._tied.put_back()

    def give_back(self, call: Call, gradients: Sequence[Tensor | None]) -> None:
        """Send gradients of what the previous stage sent."""
        self._require_backward()
        call.gave = True
        self._links.give_back((call.number, call.backwards), gradients)

    def get_back(self, call: Call) -> list[Tensor | None]:
        """Receive gradients of what `call` sent, one for each tensor."""
        self._require_backward()
        call.took = True
        gradients = self._links.get_back((call.number, call.backwards)) or [None] * len(call.sent)
        self.lacks = self.lacks or any(gradient is None for gradient in gradients)
        return gradients

    def _require_backward(self) -> None:
        if not self._goes_back:
            raise UsageError(
                f"{self._model} is cut into stages, so its gradients come only from run.backward(loss) or "
                "step.backward(loss_of), not from torch.autograd.grad or Tensor.backward.",
                "Use --strategy ddp for them.",
            )
