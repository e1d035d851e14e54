"""Following a forward without the layers of other stages: shapes on the meta device instead of values.

A stage runs the user's own `forward` from its first line to its last. What depends on other stages' parameters, before
its own layers and after them, is a *ghost*: a tensor with shape and dtype but without memory. What depends only on the
batch is computed, because later layers may use it (a mask, positions).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from samebits.machine.torch_private import DisableTorchFunction, DisableTorchFunctionSubclass, function_modes, pytree
from samebits.rank.strategy.stages.cutting.watch import memory_of
from samebits.rank.strategy.stages.meta_placeholder import PLACES, absent, leaves_of
from samebits.rank.strategy.stages.replaced_method import replace_method

_MOVES = (Tensor.to, Tensor.cpu, Tensor.cuda)
_ASKS = (Tensor.dtype.__get__, Tensor.to, Tensor.type_as)  # type: ignore[attr-defined]
"""Calls that make a forward depend on a ghost's dtype."""
_CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
_PRODUCTS = (torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.einsum, F.linear, F.bilinear)
_METHODS = (Tensor.matmul, Tensor.__matmul__, Tensor.mm, Tensor.bmm)
_ATTENTION = (F.scaled_dot_product_attention, F.multi_head_attention_forward)
_CAST = frozenset((*_CONVOLUTIONS, *_PRODUCTS, *_METHODS, *_ATTENTION))
"""Functions that autocast computes in its lower dtype, on every device."""


class Ghosts(TorchFunctionMode):
    """A mode in which an operation on a ghost makes a ghost.

    Args:
        device: that of the tensors behind the ghosts; its autocast decides their dtypes.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device, self._device_type = device, device.type
        self.on = False
        self.asked = False
        """Whether a ghost's dtype was looked at under autocast."""
        self._gone: set[int] = set()
        self._kept: list[Tensor] = []

    def begin(self, gone: Iterable[Tensor] = ()) -> None:
        """Follow from here on.

        Args:
            gone: values that went to the next stage, which may change them: from now on they are ghosts here.
        """
        self._kept.extend(gone)
        self._gone = set(map(memory_of, self._kept))
        self.on = True
        # The mode stays entered where another mode was entered above it; see `end`.
        if not any(mode is self for mode in function_modes()):
            self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Compute from here on. May be called again: a mode that is not innermost is left once it is."""
        self.on = False
        if any(mode is self for mode in function_modes()[-1:]):
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        leaves = leaves_of(args, kwargs) if self.on else ()
        if not any(isinstance(leaf, Tensor) and self._is_ghost(leaf) for leaf in leaves):
            return func(*args, **kwargs)
        if func in PLACES:
            return PLACES[func](self._device)
        casts = torch.is_autocast_enabled(self._device_type)
        self.asked = self.asked or (casts and func in _ASKS)
        # Parameters of other stages are ghosts here, whose own refusal must not run.
        with DisableTorchFunctionSubclass():
            if func in _MOVES:
                dtype = _dtype_in(args, kwargs)
                return absent(args[0].to(dtype) if dtype is not None else args[0])
            if func is Tensor.__getitem__:
                args = (args[0], _without_masks(args[1]))
            if leaves is args:
                args = tuple(map(ghost, args))
            else:
                args, kwargs = pytree.tree_map(ghost, (tuple(args), dict(kwargs)))
            if casts and func in _CAST:
                args, kwargs = pytree.tree_map(self._lower, (args, kwargs))
            result = _followed(func, args, kwargs, casts)
            return absent(result) if isinstance(result, Tensor) else pytree.tree_map(absent, result)

    def _is_ghost(self, tensor: Tensor) -> bool:
        return tensor.is_meta or (bool(self._gone) and memory_of(tensor) in self._gone)

    def _lower(self, value: Any) -> Any:
        is_float = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(torch.get_autocast_dtype(self._device_type)) if is_float else value


def ghost(value: Any) -> Any:
    """Return a tensor's shape and strides without its memory; anything else as it is."""
    return value.detach().to("meta") if isinstance(value, Tensor) and not value.is_meta else value


def _followed(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], casts: bool) -> Any:
    try:
        return func(*args, **kwargs)
    except RuntimeError as error:
        if casts:
            # The meta device has no autocast, which would unify dtypes.
            args, kwargs = pytree.tree_map(_widest, (args, kwargs))
        elif "deterministic" not in str(error):
            raise
    # For some operations torch checks another device's kernel when deterministic ones are required; a ghost has no bits.
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("default")
    try:
        return func(*args, **kwargs)
    finally:
        torch.set_deterministic_debug_mode(mode)


def _without_masks(index: Any) -> Any:
    """Replace masks in an index by element numbers, which give the number of elements."""
    parts: list[Any] = []
    for part in index if isinstance(index, tuple) else (index,):
        is_mask = isinstance(part, Tensor) and part.dtype is torch.bool and not part.is_meta and part.dim()
        parts.extend(part.nonzero(as_tuple=True) if is_mask else (part,))
    return tuple(parts)


def _widest(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


def _dtype_in(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.dtype | None:
    found = [value.dtype if isinstance(value, Tensor) else value for value in [*args[1:], *kwargs.values()]]
    return next((value for value in found if isinstance(value, torch.dtype)), None)


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
        # [Note: which calls are remembered]
        # A call is recognised by the shapes of its tensors and by plain values. With any other argument (a cache that it fills) it is
        # followed in full each time.
        if not is_usual and not all(isinstance(leaf, (Tensor, *_PLAIN)) for leaf in leaves):
            return self._forward(*args, **kwargs)
        # To read the shapes of ghosts is no operation to follow.
        with DisableTorchFunction():
            words = [*map(_word, leaves), self._layer.training, torch.is_grad_enabled()]
        # Among plain values 1, 1.0 and True are equal.
        form = tuple(words) if is_usual else repr(words)
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
    # To read the shapes of ghosts is no operation to follow.
    with DisableTorchFunction():
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
