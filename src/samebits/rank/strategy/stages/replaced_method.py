"""A function that replaces one module's method for `nn.Module.__call__`; class, hooks and names stay as they are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import nn

from samebits.errors import UsageError
from samebits.machine.torch_private import COMPILER


def refuse_compiled(model: nn.Module, strategy: str) -> None:
    """Refuse a model that is compiled, or has a compiled layer.

    Args:
        model: looked through with all its layers.
        strategy: its name, which follows the model's forward.

    Raises:
        UsageError: if one of them is compiled.
    """
    for module in model.modules():
        if hasattr(module, "_orig_mod") or module._compiled_call_impl is not None:  # noqa: SLF001
            raise UsageError(
                f"{strategy} follows the model's forward, which a compiled {type(module).__name__} hides.",
                "Prepare it without torch.compile, or use --strategy ddp.",
            )


def refuse_being_compiled(module: nn.Module) -> None:
    """Refuse to go into a graph of torch.compile: call it first in what a strategy runs for a method of `module`.

    Raises:
        UsageError: when the compiler comes here.
    """
    if not torch.compiler.is_compiling():
        return
    what = f"torch.compile hides the layers of a prepared {type(module).__name__}, which the strategy runs."
    fix = "Call it without torch.compile, or use --strategy ddp."
    # The compiler leaves out what raises while it traces, and continues without it. With fullgraph=True it raises the message.
    sys.modules[COMPILER].graph_break(msg=f"{what} {fix}")
    raise UsageError(what, fix)


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
