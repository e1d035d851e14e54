"""Following a forward without the layers of other stages: shapes on the meta device instead of values.

A stage runs the user's own `forward` from its first line. Until its first layer is called, what depends on other
stages' parameters is a *ghost*: a tensor with shape and dtype but without memory. What depends on the batch alone is
computed, because later layers may use it (a mask, positions).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lockstep.errors import UsageError
from lockstep.strategy.absent import absent
from lockstep.torch_private import DisableTorchFunctionSubclass, function_modes, pytree

_MOVES = (Tensor.to, Tensor.cpu, Tensor.cuda)
_ASKS = (Tensor.dtype.__get__, Tensor.to, Tensor.type_as)  # type: ignore[attr-defined]
"""What makes a forward depend on a ghost's dtype."""
_PLACES: dict[Any, Callable[[torch.device], Any]] = {
    Tensor.device.__get__: lambda device: device,
    Tensor.is_cuda.__get__: lambda device: device.type == "cuda",  # type: ignore[attr-defined]
    Tensor.is_cpu.__get__: lambda device: device.type == "cpu",  # type: ignore[attr-defined]
    Tensor.get_device: lambda device: -1 if device.type == "cpu" else device.index,
}
"""Where a ghost says that it is: what forward makes there, a mask or positions, is real."""
_CONVOLUTIONS = (F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)
_PRODUCTS = (torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.einsum, F.linear, F.bilinear)
_METHODS = (Tensor.matmul, Tensor.__matmul__, Tensor.mm, Tensor.bmm)
_ATTENTION = (F.scaled_dot_product_attention, F.multi_head_attention_forward)
_CAST = frozenset((*_CONVOLUTIONS, *_PRODUCTS, *_METHODS, *_ATTENTION))
"""What autocast computes in its lower dtype, on every device."""


class Ghosts(TorchFunctionMode):
    """While on: an operation with a ghost makes a ghost.

    Args:
        device: of what the ghosts stand for; its autocast decides their dtypes.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device, self._device_type = device, device.type
        self.on = False
        self.asked = False
        """Whether somebody looked at a ghost's dtype, under autocast."""

    def begin(self) -> None:
        """Follow from here on."""
        self.on = True
        self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Compute from here on. May be called again: a mode that is not the innermost leaves when it is."""
        self.on = False
        if any(mode is self for mode in function_modes()[-1:]):
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        leaves = pytree.tree_leaves((args, kwargs)) if self.on else ()
        if not any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in leaves):
            return func(*args, **kwargs)
        if func in _PLACES:
            return _PLACES[func](self._device)
        casts = torch.is_autocast_enabled(self._device_type)
        self.asked = self.asked or (casts and func in _ASKS)
        with DisableTorchFunctionSubclass():  # parameters of other stages are ghosts here
            if func in _MOVES:
                dtype = _dtype_in(args, kwargs)
                return absent(args[0].to(dtype) if dtype is not None else args[0])
            args, kwargs = pytree.tree_map(ghost, (tuple(args), dict(kwargs)))
            if casts and func in _CAST:
                args, kwargs = pytree.tree_map(self._lower, (args, kwargs))
            try:
                result = func(*args, **kwargs)
            except RuntimeError:
                if not casts:
                    raise
                args, kwargs = pytree.tree_map(_widest, (args, kwargs))  # no autocast for meta, so nobody unites dtypes
                result = func(*args, **kwargs)
            return pytree.tree_map(absent, result)

    def _lower(self, value: Any) -> Any:
        is_float = isinstance(value, Tensor) and value.is_floating_point()
        return value.to(torch.get_autocast_dtype(self._device_type)) if is_float else value


def ghost(value: Any) -> Any:
    """A tensor's shape and strides without its memory; anything else as it is."""
    return value.detach().to("meta") if isinstance(value, Tensor) and not value.is_meta else value


def _widest(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


def _dtype_in(args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.dtype | None:
    found = [value.dtype if isinstance(value, Tensor) else value for value in [*args[1:], *kwargs.values()]]
    return next((value for value in found if isinstance(value, torch.dtype)), None)


class GhostLayer:
    """Stands in for a layer of another stage while its calls are only followed: the same shapes cost nothing twice.

    Args:
        layer: its `forward` is replaced until `remove`.
        following: whether calls are only followed now; otherwise the layer computes.
    """

    def __init__(self, layer: nn.Module, following: Callable[[], bool]) -> None:
        self._layer, self._following = layer, following
        self._known: dict[str, Any] = {}
        self._forward = layer.forward
        self.remove = replace_method(layer, "forward", self._call)
        """Makes the layer itself again."""

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if not self._following():
            return self._forward(*args, **kwargs)
        leaves = pytree.tree_leaves((args, kwargs))
        form = repr([_word(leaf) for leaf in leaves] + [self._layer.training])
        if form not in self._known:
            self._known[form] = pytree.tree_map(ghost, self._forward(*args, **kwargs))
        return pytree.tree_map(_again, self._known[form])


class _Method:
    """Stands in for a method of one module, as an attribute of it."""

    def __init__(self, module: nn.Module, name: str, function: Callable[..., Any]) -> None:
        self._module, self._name, self._function = module, name, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the module is a module by itself: it runs its class's method."""
        return MethodType(getattr(type(self._module), self._name), memo[id(self._module)])

    def __reduce__(self) -> Any:
        raise UsageError(
            f"A prepared {type(self._module).__name__} cannot be pickled while a strategy runs its layers. Save its weights "
            f"with run.save_weights(model, path)."
        )


def replace_method(module: nn.Module, name: str, function: Callable[..., Any]) -> Callable[[], None]:
    """Let `module` run `function` for its method `name`; what is returned undoes it."""
    before = module.__dict__.get(name)
    module.__dict__[name] = _Method(module, name, function)

    def restore() -> None:
        if before is not None:
            module.__dict__[name] = before
        else:
            module.__dict__.pop(name, None)

    return restore


def _again(value: Any) -> Any:
    """Another object for the same ghost: each call notes at its own what arrived in its place."""
    return value.detach() if isinstance(value, Tensor) else value


def _word(leaf: Any) -> Any:
    return (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else leaf
