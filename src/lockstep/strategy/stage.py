"""One stage of a model at work: it follows the user's own `forward`, computes its layers, and hands over at its ends.

Activations go to the next stage and gradients to the one before, as autograd reaches them, so a lane may call the model
several times. What a call returns is made by the last stage and sent to the others, unless a pipeline wants it there
only. Every rank of a replica calls the model alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lockstep.errors import UsageError
from lockstep.strategy.carried_streams import CarriedStreams
from lockstep.strategy.ghost import GhostLayer, Ghosts, replace_method
from lockstep.strategy.links import Links
from lockstep.strategy.model_cut import ModelCut
from lockstep.strategy.result_form import built, form_of
from lockstep.strategy.trace import arguments, replace_arguments
from lockstep.torch_private import pytree


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
    """Whether the stage before handed over what needs gradients."""
    backwards: int = 0
    """How many backwards there were since; each gives and takes gradients once."""
    gave: bool = False
    took: bool = False


class StageRunner:
    """Replaces a model's `forward` by that of one stage, until `remove`.

    Args:
        model: parameters of other stages are on the meta device.
        cut: of the model.
        links: to the other stages.
        streams: travel with the activations.
        in_lane: whether a call belongs to a lane, so that a backward may follow; of others nothing is kept.
    """

    def __init__(
        self, model: nn.Module, cut: ModelCut, links: Links, streams: CarriedStreams, in_lane: Callable[[], bool]
    ) -> None:
        self._model, self._cut, self._links, self._streams = model, cut, links, streams
        self._in_lane = in_lane
        self._stage = cut.stages[links.stage]
        self._is_last = links.stage == links.num_stages - 1
        self._ghosts: Ghosts | None = None
        self._call: Call | None = None
        self._count = 0
        self._goes_back = False
        self.publishes = True
        """Whether the result of a call is sent to all stages."""
        self.lacks = False
        """Whether the present backward got nothing for some of what was handed over; it comes to parameters all the same."""
        self.open_calls: list[Call] = []
        """The calls of the present lane."""
        self._forward = model.forward
        self._ghost_layers = [
            GhostLayer(model.get_submodule(name), lambda: self._following) for name in self._stage.skipped
        ]
        self._buffers = [(module._buffers, key) for module in model.modules() for key in module._buffers]  # noqa: SLF001
        self._undo: list[Callable[[], None]] = []
        if self._stage.entry is not None:
            self._wrap(self._stage.entry, self._enter)
        if not self._is_last:
            exit_name = cut.stages[links.stage + 1].entry
            assert exit_name is not None
            self._wrap(exit_name, self._leave)
        self._undo.append(replace_method(model, "forward", self._run))

    def _wrap(self, name: str, before: Callable[..., Any]) -> None:
        """Let calls of a layer begin with `before`. No hook: torch's fast path for attention refuses layers with hooks."""
        module = self._model.get_submodule(name)
        call: Callable[..., Any] = module._call_impl  # noqa: SLF001 - what runs the user's hooks and `forward`

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = before(args, kwargs)
            return call(*args, **kwargs)

        self._undo.append(replace_method(module, "_call_impl", wrapped))

    def __deepcopy__(self, _memo: dict[int, Any]) -> Any:
        raise UsageError(
            f"{type(self._model).__name__} is cut into stages, so a copy would have the layers of this rank only. Copy it "
            f"before the first step, or load saved weights into a new one."
        )

    def remove(self) -> None:
        """The model is itself again, but for the parameters that it does not have here."""
        for layer in self._ghost_layers:
            layer.remove()
        for undo in self._undo:
            undo()

    @property
    def _following(self) -> bool:
        return self._ghosts is not None and self._ghosts.on

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        self._count += 1
        call = self._call = Call(self._count)
        if torch.is_grad_enabled() and self._in_lane():
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
        ghosts = self._ghosts = Ghosts(self._streams.device)
        kept = [buffers[key] for buffers, key in self._buffers]
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
            for (buffers, key), buffer in zip(self._buffers, kept, strict=True):
                if (now := buffers[key]) is not None and now.is_meta:  # a layer of another stage made itself a new one
                    buffers[key] = buffer
        if missed:
            raise UsageError(
                f"{type(self._model).__name__} returned without calling {self._stage.entry!r}, where stage "
                f"{self._links.stage} begins. Name other layers with run.prepare(..., cut=[...]), or use --strategy ddp."
            )
        return result

    def _enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Before the stage's first layer: what was followed becomes real."""
        if self._call is None:
            return self._enter_again(args, kwargs)
        if not self._following:
            return args, kwargs
        assert self._ghosts is not None
        ghosts = self._ghosts
        ghosts.end()
        words, tensors = self._links.take_over()
        number, flags, streams = words
        if number != self._call.number:
            raise UsageError(
                f"The stages are at different calls of the model ({number} and {self._call.number}). Every rank must call it "
                f"alike: no call behind run.is_main, no other number of calls."
            )
        values, states = tensors[: len(flags)], tensors[len(flags) :]
        self._streams.unpack(streams, states)
        if any(flags):
            self._call.owes = True
            values = list(_Enter.apply(self, self._call, flags, values, torch.empty(0, requires_grad=True)))  # type: ignore[no-untyped-call]
        leaves = arguments(args, kwargs)
        for number, value in zip(self._stage.carried, values, strict=True):
            self._check_dtype(ghosts, leaves[number], value)
            leaves[number].arrived = (value, self._streams.states())
        return replace_arguments(args, kwargs, dict(zip(self._stage.carried, values, strict=True)))

    def _enter_again(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Activation checkpointing computes the stage's first layer again, from what it kept: ghosts."""
        leaves = arguments(args, kwargs)
        ghosts = {number: leaves[number] for number in self._stage.carried if leaves[number].is_meta}
        if not all(hasattr(leaf, "arrived") for leaf in ghosts.values()):
            raise UsageError(
                f"{self._stage.entry!r}, where stage {self._links.stage} begins, is inside of a checkpointed part of the "
                f"model, and an earlier layer of that part is on another stage. Let the stage begin with that part, by "
                f"run.prepare(..., cut=[...])."
            )
        for leaf in ghosts.values():
            self._streams.go_to(leaf.arrived[1])
        return replace_arguments(args, kwargs, {number: leaf.arrived[0] for number, leaf in ghosts.items()})

    def _check_dtype(self, ghosts: Ghosts, ghost: Tensor, value: Tensor) -> None:
        if ghosts.asked and ghost.dtype != value.dtype:
            raise UsageError(
                f"The forward of {type(self._model).__name__} looks at the dtype of what another stage computes, which "
                f"autocast made {value.dtype} where {ghost.dtype} was expected. Cut elsewhere with run.prepare(..., "
                f"cut=[...]), or use --strategy ddp."
            )

    def _leave(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Before the next stage's first layer: it goes on from here."""
        if self._following or self._call is None:
            return args, kwargs
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
        self._links.publish([form_of(result, type(self._model).__name__), flags, words], [*tensors, *states])

    def _receive_result(self, call: Call) -> Any:
        (form, flags, words), tensors = self._links.get_result()
        values, states = tensors[: len(flags)], tensors[len(flags) :]
        self._streams.unpack(words, states)
        if any(flags):
            values = list(_Leave.apply(self, call, flags, values, torch.empty(0, requires_grad=True), *call.handed))  # type: ignore[no-untyped-call]
        return built(form, iter(values))

    @contextmanager
    def going_back(self, calls: Sequence[Call]) -> Iterator[None]:
        """Around a backward of what these calls made. Every stage before gets one message of each, whatever it reached."""
        for call in calls:
            call.backwards += 1
            call.gave = call.took = False
        self._goes_back, self.lacks = True, False
        try:
            yield
            for call in calls:
                if call.owes and not call.gave:
                    self.give_back(call, [])
            for call in calls:
                if any(call.flags) and not call.took:
                    self.get_back(call)
        finally:
            self._goes_back = False

    def give_back(self, call: Call, gradients: Sequence[Tensor | None]) -> None:
        """Send gradients of what the stage before handed over."""
        self._require_backward()
        call.gave = True
        self._links.give_back((call.number, call.backwards), gradients)

    def get_back(self, call: Call) -> list[Tensor | None]:
        """Receive gradients of what `call` handed over, one for each tensor."""
        self._require_backward()
        call.took = True
        gradients = self._links.get_back((call.number, call.backwards)) or [None] * len(call.handed)
        self.lacks = self.lacks or any(gradient is None for gradient in gradients)
        return gradients

    def _require_backward(self) -> None:
        if not self._goes_back:
            raise UsageError(
                f"Gradients through {type(self._model).__name__}, which is cut into stages, go by run.backward(loss) or "
                f"step.backward(loss_of) only, not by torch.autograd.grad or Tensor.backward. Use --strategy ddp for them."
            )


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
