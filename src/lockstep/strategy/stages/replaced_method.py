"""A function in the place of one module's method, found by `nn.Module.__call__`; class, hooks and names stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import nn

from lockstep.errors import UsageError


class _Method:
    """Stands in for a method of one module, as an attribute of it."""

    def __init__(self, module: nn.Module, name: str, function: Callable[..., Any]) -> None:
        self._module, self._name, self._function = module, name, function
        self.__wrapped__ = getattr(type(module), name).__get__(module)
        """What `inspect.signature` looks at."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copy of the module is a module by itself: it runs its class's method."""
        return MethodType(getattr(type(self._module), self._name), memo[id(self._module)])

    def __reduce__(self) -> Any:
        raise UsageError(
            f"A prepared {type(self._module).__name__} cannot be pickled while a strategy runs its layers.",
            "Save its weights with run.save_weights(model, path).",
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
