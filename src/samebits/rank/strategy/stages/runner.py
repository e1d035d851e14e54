"""One stage of a model at work: it follows the user's own `forward`, computes its layers, and hands over at its edges.

Activations go to the next stage and gradients to the previous one, as autograd reaches them, so a lane may call the
model several times. The last stage makes what a call returns and sends it to the others, unless a pipeline needs it
only there. Every rank of a replica calls the model alike, and each runs its forward to the end: so forward's side
effects (counting calls, filling a cache) happen on every stage, and the result has the form that forward gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from samebits.errors import UsageError
from samebits.rank.caller import where
from samebits.rank.strategy.stages.carried_streams import CarriedStreams
from samebits.rank.strategy.stages.contract import Arguments, Elsewhere, Gate
from samebits.rank.strategy.stages.cutting.model_cut import Entry, ModelCut
from samebits.rank.strategy.stages.cutting.module_marks import marks_of
from samebits.rank.strategy.stages.ghost import GhostLayer, Ghosts, ghost
from samebits.rank.strategy.stages.hand_over import Call, GradientExchange, Links, entered
from samebits.rank.strategy.stages.meta_placeholder import absent, swap
from samebits.rank.strategy.stages.replaced_method import replace_method
from samebits.rank.strategy.stages.results import Results, Unfollowed, arguments, replace_arguments
from samebits.rank.strategy.stages.tied_parameters import TiedParameters

CUT_ELSEWHERE = "Cut elsewhere with run.prepare(..., cut=[...]), or use --strategy ddp."


class HandedOver(BaseException):
    """Raised to leave the user's loss function: the next stage continues. `except Exception` must not catch it."""


class _Arrived(NamedTuple):
    """What arrived for a ghost, and where the random streams were."""

    value: Tensor
    states: Mapping[str, Tensor]


class StageRunner:
    """The `forward` of one stage, which replaces the model's until `remove`.

    Args:
        model: its parameters of other stages are on the meta device.
        streams: travel with the activations.
        in_lane: whether a call belongs to a lane, so a backward may follow; of other calls nothing is retained.
    """

    def __init__(
        self, model: nn.Module, cut: ModelCut, links: Links, streams: CarriedStreams, in_lane: Callable[[], bool]
    ) -> None:
        self._model, self._links, self._streams = model, links, streams
        self._in_lane = in_lane
        self._name = type(model).__name__
        self._stage = cut.stages[links.stage]
        self._elsewhere = Elsewhere(model, self._stage, cut.changing)
        self._next = cut.stages[links.stage + 1] if links.stage + 1 < links.num_stages else None
        self.tied = TiedParameters(model, self._stage.borrowed, self._next.borrowed if self._next else (), in_lane)
        self.gradients = GradientExchange(links, self.tied, self._name)
        self._results = Results(links, streams, self.gradients, self._name)
        self._ghosts = Ghosts(streams.device)
        self._call: Call | None = None
        self._count = 0
        self._has_left = False
        self.publishes = True
        """Whether the result of a call is sent to all stages."""
        self.open_calls: list[Call] = []
        """The calls of the current lane."""
        self._forward = model.forward
        self._buffers = [(module._buffers, key) for module in model.modules() for key in module._buffers]  # noqa: SLF001
        self._undo = [self._ghost_layer(name) for name in self._stage.skipped]
        self._gates: list[Gate] = []
        if self._stage.entry is not None:
            self._gates.append(Gate(model, self._stage.entry, self._enter, self._enter_again))
        if self._next is not None and self._next.entry is not None:
            self._gates.append(Gate(model, self._next.entry, self._leave))
        self._undo.extend(gate.remove for gate in self._gates)
        self._undo.append(replace_method(model, "forward", self._run))

    def _ghost_layer(self, name: str) -> Callable[[], None]:
        outside = self._outside(self._elsewhere.modules_of(name))
        return GhostLayer(self._model.get_submodule(name), lambda: self._ghosts.on, outside).remove

    def _outside(self, elsewhere: set[nn.Module]) -> Callable[[], Any]:
        places = self._elsewhere.what_matters(elsewhere)
        return lambda: (
            self._streams.standing(),
            [gate.count for gate in self._gates],
            marks_of(self._model, places) if places else None,
        )

    def __deepcopy__(self, _memo: dict[int, Any]) -> Any:
        raise UsageError(
            f"{self._name} is cut into stages, so a copy would have the layers of this rank only.",
            "Copy it before the first step, or load saved weights into a new one.",
        )

    def remove(self) -> None:
        """Restore the model, except for the parameters that it does not have here."""
        for undo in reversed(self._undo):
            undo()

    def forget_calls(self) -> None:
        """Forget the calls of the lane, which is over."""
        for call in self.open_calls:
            call.forget()
        self.open_calls.clear()

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        self._count += 1
        call = self._call = Call(self._count, self._in_lane())
        if torch.is_grad_enabled() and call.is_in_lane:
            self.open_calls.append(call)
        self._streams.mark()
        self._has_left = False
        for gate in self._gates:
            gate.count = 0
        try:
            result = self._follow(args, kwargs)
        finally:
            self._call = None
            for gate in self._gates:
                gate.count = None
        if self._next is not None and not self._has_left:
            raise _missed(self._name, self._next.entry, "its next stage begins")
        if self._next is not None and not self.publishes:
            raise HandedOver
        if self._next is not None:
            return self._results.receive(call, result)
        if self.publishes:
            self._results.publish(result)
        return result

    def _follow(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the user's forward; what other stages compute are ghosts in it."""
        ghosts = self._ghosts = Ghosts(self._streams.device)
        before = [buffers[key] for buffers, key in self._buffers]
        if self._stage.entry is not None:
            ghosts.begin()
        try:
            result = self._forward(*args, **kwargs)
            missed = self._ghosts.on and not self._has_left
        except Exception as error:
            if self._has_left:
                return self._unfollowed(error)
            if not isinstance(error, _OF_GHOSTS) or not (self._ghosts.on or "meta" in str(error)):
                raise
            raise UsageError(
                f"The forward of {self._name} cannot be followed without the layers of other stages "
                f"({type(error).__name__}: {str(error).splitlines()[0]}).",
                "Move data-dependent branches and indexing out of forward, choose other cut points with "
                "run.prepare(..., cut=[...]), or use --strategy ddp.",
            ) from error
        finally:
            ghosts.end()
            self.tied.put_back()
            for (buffers, key), buffer in zip(self._buffers, before, strict=True):
                # A layer of another stage made itself a new buffer, here of ghosts.
                if (now := buffers[key]) is not None and now.is_meta:
                    buffers[key] = buffer
        if missed:
            raise _missed(self._name, self._stage.entry, f"stage {self._links.stage} begins")
        return result

    def _unfollowed(self, error: Exception) -> Unfollowed:
        """Stop following: forward depends on values after this stage's layers, so only the next stage knows its way."""
        if places := self._elsewhere.what_matters(self._elsewhere.modules()):
            raise UsageError(
                f"{self._name} changes {places[0]} in forward, and its forward cannot be followed to its end without "
                f"the layers of other stages ({type(error).__name__}: {(str(error).splitlines() or [''])[0]}).",
                "Keep such state in a buffer or out of forward, cut elsewhere with run.prepare(..., cut=[...]), or "
                "use --strategy ddp.",
            ) from error
        return Unfollowed(error)

    def _enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Enter the stage at its first layer: what was followed becomes real."""
        assert self._call is not None
        assert self._stage.entry is not None
        self._ghosts.end()
        (number, is_in_lane, place, flags, news, streams), tensors = self._links.take_over()
        _check_same_call((number, is_in_lane, place), self._call, self._links.stage)
        carried = self._stage.entry.carried
        first, behind = len(carried), len(carried) + sum(news)
        values = [*tensors[:first], *self.tied.receive(news, tensors[first:behind])]
        self._streams.unpack(streams, tensors[behind:])
        values = entered(self.gradients, self._call, flags, values)
        self._call.borrowed = values[first:]
        self.tied.use(values[first:])
        leaves = arguments(args, kwargs)
        return replace_arguments(
            args, kwargs, {n: self._arrived(leaves[n], value) for n, value in zip(carried, values, strict=False)}
        )

    def _arrived(self, place: Any, value: Tensor) -> Tensor:
        """Return what arrived for a ghost: the ghost itself, so other holders of it have the value too."""
        if (
            not isinstance(place, Tensor)
            or isinstance(place, nn.Parameter)
            or (place.requires_grad and not place.is_meta)
        ):
            raise _missed_value(self._stage.entry, self._links.stage)
        if self._ghosts.asked and place.dtype != value.dtype:
            raise UsageError(
                f"The forward of {self._name} depends on the dtype of a value from another stage, which autocast made "
                f"{value.dtype} where {place.dtype} was expected.",
                CUT_ELSEWHERE,
            )
        # [Note: why a ghost becomes its value]
        # Forward may have put the ghost anywhere: into a list, a closure, an attribute. The object itself gets the memory that
        # arrived, so each of them has the value. Both carry it, as a checkpoint may hold either.
        swap(place, value)
        states = self._streams.states()
        place.arrived = _Arrived(place, states)  # type: ignore[attr-defined]
        value.arrived = _Arrived(place, states)  # type: ignore[attr-defined]
        return place

    def _enter_again(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Enter again: activation checkpointing computes the stage's first layer, or the script calls it directly."""
        assert self._stage.entry is not None
        leaves = arguments(args, kwargs)
        carried = {number: leaves[number] for number in self._stage.entry.carried if number < len(leaves)}
        arrived = {number: leaf.arrived for number, leaf in carried.items() if hasattr(leaf, "arrived")}
        if any(isinstance(leaf, Tensor) and leaf.is_meta and number not in arrived for number, leaf in carried.items()):
            raise UsageError(
                f"{self._stage.entry.layer!r}, where stage {self._links.stage} begins, is inside a checkpointed part "
                "of the model, and an earlier layer of that part is on another stage.",
                "Let the stage begin with that part: run.prepare(..., cut=[...]).",
            )
        if not arrived or len(arrived) < len(carried):
            return args, kwargs
        self._streams.go_to(next(iter(arrived.values())).states)
        return replace_arguments(args, kwargs, {number: one.value for number, one in arrived.items()})

    def _leave(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Leave the stage at the next one's first layer: that stage continues, and this one follows."""
        assert self._next is not None
        assert self._next.entry is not None
        assert self._call is not None
        if self._ghosts.on:
            return args, kwargs
        leaves = arguments(args, kwargs)
        carried = [leaves[number] for number in self._next.entry.carried]
        if any(not isinstance(value, Tensor) or value.is_meta for value in carried):
            raise UsageError(
                f"The input of {self._next.entry.layer!r} needs a value of another stage that went around "
                f"{self._stage.layers[0]!r}.",
                CUT_ELSEWHERE,
            )
        passed_on, news = self.tied.to_hand_over()
        grad = torch.is_grad_enabled()
        self._call.sent = [*carried, *passed_on]
        self._call.flags = [grad and value.requires_grad for value in self._call.sent]
        words, states = self._streams.pack()
        sent = [*carried, *(value for value, is_new in zip(passed_on, news, strict=True) if is_new), *states]
        call = self._call
        self._links.hand_over([call.number, call.is_in_lane, where(), call.flags, news, words], sent)
        self.tied.put_back()
        gone = {number: absent(ghost(leaves[number])) for number in self._next.entry.carried}
        self._has_left = True
        self._ghosts.begin(carried)
        return replace_arguments(args, kwargs, gone)


def _check_same_call(theirs: tuple[int, bool, str], call: Call, stage: int) -> None:
    """Check that what arrived at `stage` is of the call that it is in; `theirs`: number, whether in a lane, line."""
    if theirs[:2] == (call.number, call.is_in_lane):
        return
    here = _place_of(call.number, call.is_in_lane, where())
    error = UsageError(
        f"The stages are at different calls of the model: stage {stage - 1} at {_place_of(*theirs)}, stage {stage} at {here}.",
        "Call the model the same number of times on every rank; do not put a call under `if run.is_main`.",
    )
    error.finding = "mismatched-collective"
    raise error


def _place_of(number: int, is_in_lane: bool, place: str) -> str:
    """`call 12 (train.py:31, in a lane)`."""
    return f"call {number} ({place}, {'in' if is_in_lane else 'outside of'} a lane)"


def _missed(name: str, entry: Entry | None, what: str) -> UsageError:
    assert entry is not None
    which = repr(entry.layer) if entry.number == 1 else f"{entry.layer!r} (call {entry.number})"
    return UsageError(
        f"{name} returned without calling {which}, where {what}.",
        "Name other layers with run.prepare(..., cut=[...]) if forward takes different paths, or use --strategy ddp.",
    )


def _missed_value(entry: Entry | None, stage: int) -> UsageError:
    assert entry is not None
    return UsageError(
        f"The input of {entry.layer!r}, where stage {stage} begins, is not the one it had in the first step.",
        CUT_ELSEWHERE,
    )


_OF_GHOSTS = (RuntimeError, NotImplementedError, TypeError, ValueError)
"""What torch and Python raise when values are missing."""
