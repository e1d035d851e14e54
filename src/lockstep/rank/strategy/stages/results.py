"""What a call of the model returns on each stage: the last computes it, the others have its form and get its values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lockstep.errors import UsageError
from lockstep.rank.strategy.stages.carried_streams import CarriedStreams
from lockstep.rank.strategy.stages.ghosts.meta_placeholder import swap
from lockstep.rank.strategy.stages.hand_over import Call, Exchange, left
from lockstep.rank.strategy.stages.links import Links
from lockstep.rank.strategy.stages.result_form import built, form_of
from lockstep.rank.strategy.stages.result_tree import tensors_of, with_tensors


@dataclass(frozen=True)
class Unfollowed:
    """A stand-in for a result: this stage could not follow forward after its own layers."""

    error: Exception


class Results:
    """The results of one model's calls.

    Args:
        links: between the stages.
        streams: sent with the values.
        exchange: of gradients.
        model: what messages call the model.
    """

    def __init__(self, links: Links, streams: CarriedStreams, exchange: Exchange, model: str) -> None:
        self._links, self._streams, self._exchange, self._model = links, streams, exchange, model

    def publish(self, result: Any) -> None:
        """Send the last stage's result to all others."""
        tensors = tensors_of(result)
        present = [not tensor.is_meta for tensor in tensors]
        values = [tensor for tensor in tensors if not tensor.is_meta]
        flags = [torch.is_grad_enabled() and tensor.requires_grad for tensor in values]
        words, states = self._streams.pack()
        kind = type(result).__name__
        form = form_of(result) if all(present) else None
        self._links.publish([[kind, form], present, flags, words], [*values, *states])

    def receive(self, call: Call, result: Any) -> Any:
        """Receive the last stage's result, in the form of this stage's."""
        ((kind, form), present, flags, words), tensors = self._links.get_result()
        values, states = tensors[: len(flags)], tensors[len(flags) :]
        self._streams.unpack(words, states)
        values = left(self._exchange, call, flags, values)
        if isinstance(result, Unfollowed):
            if form is None:
                raise UsageError(
                    f"{self._model} returns a {kind}, and its forward cannot be followed to its end without the layers "
                    f"of other stages ({_said(result.error)}).",
                    "Return a tensor, or a tuple, list or dict of tensors, or use --strategy pipeline, where only the "
                    "last stage needs it.",
                )
            return built(form, iter(values))
        return self._filled(result, present, values)

    def _filled(self, result: Any, present: Sequence[bool], values: Sequence[Tensor]) -> Any:
        places = tensors_of(result)
        if len(places) != len(present):
            raise UsageError(
                f"{self._model} returns {len(present)} tensors on the last stage, but {len(places)} on another.",
                "Return the same form whatever the values are, or use --strategy pipeline.",
            )
        arrived = iter(values)
        new: dict[int, Tensor] = {}
        met: set[int] = set()
        for place, is_present in zip(places, present, strict=True):
            if is_present:
                value = next(arrived)
                if id(place) not in met and not (place.is_meta and becomes(place, value)):
                    new[id(place)] = value
                met.add(id(place))
        return with_tensors(result, lambda tensor: new.get(id(tensor), tensor)) if new else result


def becomes(place: Tensor, value: Tensor) -> bool:
    """Make a tensor what arrived for it, wherever it is held; `value` becomes what it was. False for a parameter."""
    if isinstance(place, nn.Parameter):
        return False
    swap(place, value)
    return True


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
