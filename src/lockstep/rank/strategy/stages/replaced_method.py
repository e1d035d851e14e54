"""A function that replaces one module's method for `nn.Module.__call__`; class, hooks and names stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any

from torch import nn

from lockstep.errors import UsageError
from lockstep.rank.strategy.stages.compiled_models import refuse_being_compiled


class _Method:
    """A stand-in for a method of one module, as the module's attribute."""

    def __init__(self, module: nn.Module, name: str, function: Callable[..., Any]) -> None:
        self._module, self._name, self._function = module, name, function
        self.__wrapped__ = getattr(type(module), name).__get__(module)
        """What `inspect.signature` looks at."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        refuse_being_compiled(self._module)
        return self._function(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Copy for a copy of the module, which is independent: it runs its class's method."""
        return MethodType(getattr(type(self._module), self._name), memo[id(self._module)])

    def __reduce__(self) -> Any:
        raise UsageError(
            f"A prepared {type(self._module).__name__} cannot be pickled while a strategy runs its layers.",
            "Save its weights with run.save_weights(model, path).",
        )


def replace_method(module: nn.Module, name: str, function: Callable[..., Any]) -> Callable[[], None]:
    """Let `module` run `function` for its method `name`; call what is returned to undo it."""
    before = module.__dict__.get(name)
    module.__dict__[name] = _Method(module, name, function)

    def restore() -> None:
        if before is not None:
            module.__dict__[name] = before
        else:
            module.__dict__.pop(name, None)

    return restore
