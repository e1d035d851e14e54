"""One stage of a model at work: it follows the user's own `forward`, computes its layers, and hands over at its ends.

Activations go to the next stage and gradients to the one before, as autograd reaches them, so a lane may call the model
several times. What a call returns is made by the last stage and sent to the others, unless a pipeline wants it there
only. Every rank of a replica calls the model alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils import _pytree as pytree

from lockstep.errors import PromiseBroken, UsageError
from lockstep.strategy.carried_streams import CarriedStreams
from lockstep.strategy.ghost import GhostLayer, Ghosts, replace_forward
from lockstep.strategy.model_cut import ModelCut
from lockstep.strategy.trace import arguments, replace_arguments
from lockstep.transport.channel import Channel
from lockstep.transport.contract import Transport

ACTIVATIONS, GRADIENTS, RESULTS = 1, 2, 3
"""Tags of the three kinds of messages between the stages of a replica."""


class HandedOver(BaseException):
    """The next stage goes on from here; leaves the user's `forward`. No error: `except Exception` must not catch it."""


@dataclass
class Call:
    """One call of the model."""

    number: int
    handed: list[Tensor] = field(default_factory=list)
    """What went to the next stage, with its graph."""
    flags: list[bool] = field(default_factory=list)
    """Which of `handed` need a gradient."""
    owes: bool = False
    """Whether the stage before waits for gradients of what it sent."""


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
        self._early: dict[int, tuple[Any, list[Tensor]]] = {}
        self._waits: list[tuple[float, float]] = []

    def hand_over(self, words: Any, tensors: Sequence[Tensor]) -> None:
        """Activations, to the next stage."""
        self._ahead.send(self.stage + 1, words, tensors)

    def take_over(self) -> tuple[Any, list[Tensor]]:
        """The activations of the stage before."""
        return self._waiting(self._ahead, self.stage - 1)

    def give_back(self, call: int, gradients: Sequence[Tensor | None]) -> None:
        """Gradients, to the stage before; none for what was not used."""
        present = [gradient is not None for gradient in gradients]
        self._back.send(self.stage - 1, [call, present], [g for g in gradients if g is not None])

    def get_back(self, call: int) -> list[Tensor | None]:
        """The gradients of what `call` handed over; those of other calls may come first."""
        while call not in self._early:
            (number, present), tensors = self._waiting(self._back, self.stage + 1)
            self._early[number] = (present, tensors)
        present, tensors = self._early.pop(call)
        arrived = iter(tensors)
        return [next(arrived) if is_present else None for is_present in present]

    def forget_before(self, call: int) -> None:
        """Gradients of calls before `call` that nobody asked for."""
        self._early = {number: value for number, value in self._early.items() if number >= call}

    def publish(self, words: Any, tensors: Sequence[Tensor]) -> None:
        """The last stage's result, to all others."""
        for stage in range(self.num_stages - 1):
            self._results.send(stage, words, tensors)

    def get_result(self) -> tuple[Any, list[Tensor]]:
        """The last stage's result."""
        return self._waiting(self._results, self.num_stages - 1)

    def _waiting(self, channel: Channel, source: int) -> tuple[Any, list[Tensor]]:
        began = time.monotonic()
        message = channel.receive(source)
        self._waits.append((began, time.monotonic()))
        return message

    def take_waits(self) -> list[tuple[float, float]]:
        """When this stage waited for messages since the last question: begin and end, in order."""
        waits, self._waits = self._waits, []
        return waits

    def flush(self) -> None:
        """Wait until everything sent is delivered."""
        for channel in (self._ahead, self._back, self._results):
            channel.flush()


class StageRunner:
    """Replaces a model's `forward` by that of one stage, until `remove`.

    Args:
        model: parameters of other stages are on the meta device.
        cut: of the model.
        links: to the other stages.
        streams: travel with the activations.
    """

    def __init__(self, model: nn.Module, cut: ModelCut, links: Links, streams: CarriedStreams) -> None:
        self._model, self._cut, self._links, self._streams = model, cut, links, streams
        self._stage = cut.stages[links.stage]
        self._is_last = links.stage == links.num_stages - 1
        self._ghosts: Ghosts | None = None
        self._call: Call | None = None
        self._count = 0
        self.publishes = True
        """Whether the result of a call is sent to all stages."""
        self.open_calls: list[Call] = []
        """The calls of the present lane."""
        self._forward = model.forward
        self._ghost_layers = [
            GhostLayer(model.get_submodule(name), lambda: self._following) for name in self._stage.skipped
        ]
        self._hooks: list[Any] = []
        if self._stage.entry is not None:
            self._hook(self._stage.entry, self._enter)
        if not self._is_last:
            exit_name = cut.stages[links.stage + 1].entry
            assert exit_name is not None
            self._hook(exit_name, self._leave)
        self._restore_forward = replace_forward(model, self._run)

    def _hook(self, name: str, hook: Callable[..., Any]) -> None:
        module = self._model.get_submodule(name)
        self._hooks.append(module.register_forward_pre_hook(hook, with_kwargs=True, prepend=True))

    def __deepcopy__(self, _memo: dict[int, Any]) -> Any:
        raise UsageError(
            f"{type(self._model).__name__} is cut into stages, so a copy would have the layers of this rank only. Copy it "
            f"before the first step, or load saved weights into a new one."
        )

    def remove(self) -> None:
        """The model is itself again, but for the parameters that it does not have here."""
        for hook in self._hooks:
            hook.remove()
        for layer in self._ghost_layers:
            layer.remove()
        self._restore_forward()

    @property
    def _following(self) -> bool:
        return self._ghosts is not None and self._ghosts.on

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        self._count += 1
        call = self._call = Call(self._count)
        if torch.is_grad_enabled():
            self.open_calls.append(call)
        self._streams.mark()
        try:
            result = self._compute(args, kwargs)
        except HandedOver:
            if not self.publishes:
                raise
            return self._receive_result(call)
        finally:
            self._call = None
        if not self._is_last:
            raise UsageError(
                f"{type(self._model).__name__} returned without calling {self._cut.stages[self._links.stage + 1].entry!r}, "
                f"where its next stage begins. A forward that takes other ways cannot be cut there: name other layers "
                f"with run.prepare(..., cut=[...]), or use --strategy ddp."
            )
        if self.publishes:
            self._publish(result)
        return result

    def _compute(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._stage.entry is None:
            return self._forward(*args, **kwargs)
        ghosts = self._ghosts = Ghosts()
        ghosts.begin()
        try:
            result = self._forward(*args, **kwargs)
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            if not self._following and "meta" not in str(error):
                raise
            raise UsageError(
                f"The forward of {type(self._model).__name__} cannot be followed without the layers of other stages "
                f"({type(error).__name__}: {str(error).splitlines()[0]}). Keep what decides or indexes by values out of "
                f"forward, cut elsewhere with run.prepare(..., cut=[...]), or use --strategy ddp."
            ) from error
        finally:
            missed, self._ghosts = ghosts.on, None
            ghosts.end()
        if missed:
            raise UsageError(
                f"{type(self._model).__name__} returned without calling {self._stage.entry!r}, where stage "
                f"{self._links.stage} begins. Name other layers with run.prepare(..., cut=[...]), or use --strategy ddp."
            )
        return result

    def _enter(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Before the stage's first layer: what was followed becomes real."""
        if not self._following or self._call is None:
            return None
        assert self._ghosts is not None
        self._ghosts.end()
        words, tensors = self._links.take_over()
        number, flags, streams = words
        if number != self._call.number:
            raise UsageError(
                f"The stages are at different calls of the model ({number} and {self._call.number}). Every rank must call it "
                f"alike: no call behind run.is_main, no other number of calls."
            )
        values, states = tensors[: len(flags)], tensors[len(flags) :]
        self._streams.unpack(streams, states)
        if any(flags) and torch.is_grad_enabled():
            self._call.owes = True
            values = list(_Enter.apply(self, self._call, flags, values, torch.empty(0, requires_grad=True)))  # type: ignore[no-untyped-call]
        return replace_arguments(args, kwargs, dict(zip(self._stage.carried, values, strict=True)))

    def _leave(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the next stage's first layer: it goes on from here."""
        if self._following or self._call is None:
            return
        leaves = arguments(args, kwargs)
        carried = [leaves[number] for number in self._cut.stages[self._links.stage + 1].carried]
        if any(not isinstance(value, Tensor) or value.is_meta for value in carried):
            raise UsageError(
                f"What goes into {self._cut.stages[self._links.stage + 1].entry!r} needs a value of another stage that went "
                f"around {self._stage.entry!r}. Cut elsewhere with run.prepare(..., cut=[...]), or use --strategy ddp."
            )
        grad = torch.is_grad_enabled()
        self._call.handed, self._call.flags = carried, [grad and value.requires_grad for value in carried]
        words, states = self._streams.pack()
        self._links.hand_over([self._call.number, self._call.flags, words], [*carried, *states])
        raise HandedOver

    def _publish(self, result: Any) -> None:
        tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
        words, states = self._streams.pack()
        flags = [torch.is_grad_enabled() and tensor.requires_grad for tensor in tensors]
        self._links.publish([_form(result, type(self._model).__name__), flags, words], [*tensors, *states])

    def _receive_result(self, call: Call) -> Any:
        (form, flags, words), tensors = self._links.get_result()
        values, states = tensors[: len(flags)], tensors[len(flags) :]
        self._streams.unpack(words, states)
        if any(flags):
            values = list(_Leave.apply(self, call, flags, values, torch.empty(0, requires_grad=True), *call.handed))  # type: ignore[no-untyped-call]
        return _built(form, iter(values))

    def settle(self) -> None:
        """The lane is over: say to the stage before which gradients will not come, and forget the lane's calls."""
        for call in self.open_calls:
            if call.owes:
                self.give_back(call, [])
        self._links.forget_before(self._count + 1)
        self.open_calls.clear()

    def give_back(self, call: Call, gradients: Sequence[Tensor | None]) -> None:
        """Send gradients of what the stage before handed over."""
        call.owes = False
        self._links.give_back(call.number, gradients)

    def get_back(self, call: Call) -> list[Tensor | None]:
        """Receive gradients of what `call` handed over, one for each tensor."""
        return self._links.get_back(call.number) or [None] * len(call.handed)


class _Enter(torch.autograd.Function):
    """The stage's inputs; backward sends their gradients to the stage before."""

    @staticmethod
    def forward(ctx: Any, runner: StageRunner, call: Call, flags: list[bool], values: list[Tensor], _: Tensor) -> Any:
        ctx.runner, ctx.call = runner, call
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(value for value, flag in zip(values, flags, strict=True) if not flag))
        return tuple(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        ctx.runner.give_back(ctx.call, gradients)
        return (None,) * 5


class _Leave(torch.autograd.Function):
    """The model's result on a stage that is not the last; backward receives gradients of what was handed over."""

    @staticmethod
    def forward(
        ctx: Any, runner: StageRunner, call: Call, flags: list[bool], values: list[Tensor], _: Tensor, *handed: Tensor
    ) -> Any:
        ctx.runner, ctx.call, ctx.num_handed = runner, call, len(handed)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(value for value, flag in zip(values, flags, strict=True) if not flag))
        return tuple(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *_: Tensor | None) -> Any:
        gradients: list[Tensor | None] = [None] * ctx.num_handed
        if any(ctx.call.flags):
            gradients = ctx.runner.get_back(ctx.call)
        return (None, None, None, None, None, *gradients)


def _form(result: Any, model: str) -> Any:
    """The structure of a result as JSON words; "t" stands for a tensor."""
    if isinstance(result, Tensor):
        return "t"
    if result is None or isinstance(result, (bool, int, float, str)):
        return ["value", result]
    if type(result) in (tuple, list):
        return [type(result).__name__, [_form(part, model) for part in result]]
    if type(result) is dict and all(isinstance(key, str) for key in result):
        return ["dict", {key: _form(part, model) for key, part in result.items()}]
    raise UsageError(
        f"{model} returns a {type(result).__name__}, which cannot be sent to the other stages. Return a tensor, or a tuple, "
        f"list or dict of tensors; or use --strategy pipeline, where only the last stage needs it."
    )


def _built(form: Any, tensors: Any) -> Any:
    if form == "t":
        return next(tensors)
    kind, parts = form
    if kind == "value":
        return parts
    if kind == "dict":
        return {key: _built(part, tensors) for key, part in parts.items()}
    if kind not in ("tuple", "list"):
        raise PromiseBroken(f"the form {form!r} of a result is unknown")
    values = [_built(part, tensors) for part in parts]
    return tuple(values) if kind == "tuple" else values
