"""What a call of the model returns on each stage: the last computes it, the others have its form and get its values."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from samebits.errors import InternalError, UsageError
from samebits.machine.torch_private import pytree
from samebits.rank.strategy.stages.carried_streams import CarriedStreams
from samebits.rank.strategy.stages.hand_over import Call, Exchange, Links, left
from samebits.rank.strategy.stages.meta_placeholder import swap


def arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the leaves of a call's arguments, in a fixed order."""
    leaves: list[Any] = pytree.tree_leaves((args, dict(kwargs)))
    return leaves


def replace_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], replaced: Mapping[int, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with some leaves replaced, by number."""
    leaves, form = pytree.tree_flatten((args, dict(kwargs)))
    new_args, new_kwargs = pytree.tree_unflatten([replaced.get(n, leaf) for n, leaf in enumerate(leaves)], form)
    return new_args, new_kwargs


def form_of(result: Any) -> Any:
    """The structure of what the model returned as JSON words, "t" for a tensor. None for an object of another class."""
    if isinstance(result, Tensor):
        return "t"
    if result is None or isinstance(result, (bool, int, float, str)):
        return ["value", result]
    if type(result) in (tuple, list):
        parts = [form_of(part) for part in result]
        return None if None in parts else [type(result).__name__, parts]
    if type(result) is dict and all(isinstance(key, str) for key in result):
        named = {key: form_of(part) for key, part in result.items()}
        return None if None in named.values() else ["dict", named]
    return None


def built(form: Any, tensors: Iterator[Tensor]) -> Any:
    """Invert `form_of`, with these tensors."""
    if form == "t":
        return next(tensors)
    kind, parts = form
    if kind == "value":
        return parts
    if kind == "dict":
        return {key: built(part, tensors) for key, part in parts.items()}
    if kind not in ("tuple", "list"):
        raise InternalError(f"the form {form!r} of a result is unknown")
    values = [built(part, tensors) for part in parts]
    return tuple(values) if kind == "tuple" else values


def tensors_of(result: Any) -> list[Tensor]:
    """All tensors, in a fixed order; one that occurs twice appears twice."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    _map(result, note, True)
    return found


def with_tensors(result: Any, new: Callable[[Tensor], Tensor]) -> Any:
    """Return the same tree with other tensors: containers are new if anything in them is."""
    return _map(result, new, True)


def _map(value: Any, new: Callable[[Tensor], Tensor], is_outermost: bool) -> Any:
    if isinstance(value, Tensor):
        return new(value)
    if not pytree.tree_is_leaf(value):
        children, form = pytree.tree_flatten(value, is_leaf=lambda node: node is not value)
        made = [_map(child, new, False) for child in children]
        same = all(one is other for one, other in zip(children, made, strict=True))
        return value if same else pytree.tree_unflatten(made, form)
    return _with_attributes(value, new, is_outermost)


def _with_attributes(value: Any, new: Callable[[Tensor], Tensor], is_outermost: bool) -> Any:
    """Map a dataclass's fields, or the attributes of the model's own result object."""
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if hasattr(value, field.name)]
    elif is_outermost and hasattr(value, "__dict__") and not isinstance(value, (nn.Module, type)):
        names = list(vars(value))
    else:
        return value
    made = {name: _map(getattr(value, name), new, False) for name in names}
    changed = {name: one for name, one in made.items() if one is not getattr(value, name)}
    if not changed:
        return value
    other = copy.copy(value)
    for name, one in changed.items():
        # A frozen dataclass refuses `setattr`.
        object.__setattr__(other, name, one)
    return other


@dataclass(frozen=True)
class Unfollowed:
    """A stand-in for a result: this stage could not follow forward after its own layers."""

    error: Exception


class Results:
    """The results of one model's calls.

    Args:
        streams: sent with the values.
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
            # A ghost becomes its value, so every reference to it sees that too; a parameter is replaced in the result only.
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
