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
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils import _pytree as pytree

from lockstep.errors import UsageError

_MOVES = (Tensor.to, Tensor.cpu, Tensor.cuda)


class Ghosts(TorchFunctionMode):
    """While on: an operation with a ghost makes a ghost."""

    on = False

    def begin(self) -> None:
        """Follow from here on."""
        self.on = True
        self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> None:
        """Compute from here on. May be called again: a mode that is not the innermost leaves when it is."""
        self.on = False
        if any(mode is self for mode in _get_current_function_mode_stack()[-1:]):  # type: ignore[no-untyped-call]
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, func: Callable[..., Any], _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        leaves = pytree.tree_leaves((args, kwargs)) if self.on else ()
        if not any(isinstance(leaf, Tensor) and leaf.is_meta for leaf in leaves):
            return func(*args, **kwargs)
        if func in _MOVES:
            return args[0].to(dtype) if (dtype := _dtype_in(args, kwargs)) is not None else args[0]
        args, kwargs = pytree.tree_map(ghost, (tuple(args), dict(kwargs)))
        return func(*args, **kwargs)


def ghost(value: Any) -> Any:
    """A tensor's shape and strides without its memory; anything else as it is."""
    return value.detach().to("meta") if isinstance(value, Tensor) and not value.is_meta else value


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
        self.remove = replace_forward(layer, self._call)
        """Makes the layer itself again."""

    def _call(self, *args: Any, **kwargs: Any) -> Any:
        if not self._following():
            return self._forward(*args, **kwargs)
        leaves = pytree.tree_leaves((args, kwargs))
        form = repr([_word(leaf) for leaf in leaves] + [self._layer.training])
        if form not in self._known:
            self._known[form] = pytree.tree_map(ghost, self._forward(*args, **kwargs))
        return self._known[form]


class _Forward:
    """Stands in for a module's `forward`, as an attribute of that one module."""

    def __init__(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        self._module, self._forward = module, forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the module is a module by itself: it runs its class's `forward`."""
        return MethodType(type(self._module).forward, memo[id(self._module)])

    def __reduce__(self) -> Any:
        raise UsageError(
            f"A prepared {type(self._module).__name__} cannot be pickled while a strategy runs its layers. Save its weights "
            f"with run.save_weights(model, path)."
        )


def replace_forward(module: nn.Module, forward: Callable[..., Any]) -> Callable[[], None]:
    """Let calls of `module` run `forward`; what is returned undoes it."""
    before = module.__dict__.get("forward")
    module.__dict__["forward"] = _Forward(module, forward)

    def restore() -> None:
        if before is not None:
            module.__dict__["forward"] = before
        else:
            module.__dict__.pop("forward", None)

    return restore


def _word(leaf: Any) -> Any:
    return (tuple(leaf.shape), leaf.dtype) if isinstance(leaf, Tensor) else leaf
