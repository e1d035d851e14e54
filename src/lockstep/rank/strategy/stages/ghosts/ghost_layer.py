"""A layer of another stage: its calls are followed once, and then only return ghosts of the remembered shapes.

A layer's side effects (counting in a list that others read, drawing from a random stream, filling a cache) must happen
in every stage. So a layer whose first followed call changed anything outside it is followed in full each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lockstep.machine.torch_private import DisableTorchFunction, pytree
from lockstep.rank.strategy.stages.ghosts.ghost import ghost
from lockstep.rank.strategy.stages.ghosts.meta_placeholder import absent
from lockstep.rank.strategy.stages.replaced_method import replace_method

MAX_FORMS = 256
"""The number of call shapes that are remembered."""
_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device, slice)


class _Returned(NamedTuple):
    """A leaf of what a call returned."""

    argument: int | None
    """Which argument it is, if any."""
    value: Any
    """A ghost, or a plain value."""


class _Remembered(NamedTuple):
    leaves: list[_Returned]
    form: Any


class GhostLayer:
    """A stand-in for a layer of another stage while its calls are only followed.

    Args:
        layer: its `forward` is replaced until `remove`.
        following: whether calls are only followed now; otherwise the layer computes.
        outside: returns something that changes when anything outside the layer does.
    """

    def __init__(self, layer: nn.Module, following: Callable[[], bool], outside: Callable[[], Any]) -> None:
        self._layer, self._following, self._outside = layer, following, outside
        self._known: dict[Any, _Remembered | None] = {}
        self._forward = layer.forward
        self.remove = replace_method(layer, "forward", self._call)
        """Restore the layer."""

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if not self._following():
            return self._forward(*args, **kwargs)
        is_usual = len(args) == 1 and not kwargs and isinstance(args[0], Tensor)
        leaves = args if is_usual else pytree.tree_leaves((args, kwargs))
        if not is_usual and not all(isinstance(leaf, (Tensor, *_PLAIN)) for leaf in leaves):
            return self._forward(*args, **kwargs)  # it fills a cache, say
        with DisableTorchFunction():  # reading ghosts' shapes is no operation to follow
            words = [*map(_word, leaves), self._layer.training, torch.is_grad_enabled()]
        form = tuple(words) if is_usual else repr(words)  # among plain values 1, 1.0 and True are equal
        if form not in self._known:
            return self._follow(form, leaves, args, kwargs)
        known = self._known[form]
        return self._forward(*args, **kwargs) if known is None else _again(known, leaves)

    def _follow(self, form: Any, leaves: Sequence[Any], args: Any, kwargs: Any) -> Any:
        before = self._outside()
        result = self._forward(*args, **kwargs)
        if len(self._known) >= MAX_FORMS:
            self._known.clear()
        known = self._known[form] = _remembered(result, leaves) if self._outside() == before else None
        return result if known is None else _again(known, leaves)


def _remembered(result: Any, arguments: Sequence[Any]) -> _Remembered | None:
    """What a call returned, without its values; None if it cannot be made again."""
    number_of = {id(leaf): number for number, leaf in enumerate(arguments) if isinstance(leaf, Tensor)}
    leaves, form = pytree.tree_flatten(result)
    if not all(isinstance(leaf, (Tensor, *_PLAIN)) for leaf in leaves):
        return None
    numbers = [number_of.get(id(leaf)) for leaf in leaves]
    values = [ghost(leaf) if number is None else None for leaf, number in zip(leaves, numbers, strict=True)]
    return _Remembered(list(map(_Returned, numbers, values)), form)


def _again(known: _Remembered, arguments: Sequence[Any]) -> Any:
    """Make new ghosts of the same shapes: something else may arrive for each of them."""
    made: dict[int, Any] = {}
    with DisableTorchFunction():  # as above
        leaves = [
            arguments[leaf.argument]
            if leaf.argument is not None
            else made.setdefault(
                id(leaf.value), absent(leaf.value.detach()) if isinstance(leaf.value, Tensor) else leaf.value
            )
            for leaf in known.leaves
        ]
    return leaves[0] if known.form.is_leaf() else pytree.tree_unflatten(leaves, known.form)


def _word(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    strides = leaf.stride() if leaf.layout is torch.strided else leaf.layout
    return tuple(leaf.shape), strides, leaf.dtype, leaf.is_meta
