"""What can be asked of an object without running anybody's code."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

from torch import nn

from lockstep.run.watch.holdings import is_the_users

NEW: Any = type("New", (), {"__repr__": lambda _: "made in this turn"})()
"""In place of an object that the turn makes."""


def is_users(kind: Any) -> bool:
    """Whether the script, or a module beside it, defines a class."""
    module = getattr(kind, "__module__", None)
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    return module == "__main__" or (isinstance(file, str) and is_the_users(file))


def is_own(function: FunctionType) -> bool:
    return is_the_users(function.__code__.co_filename) or function.__globals__.get("__name__") == "__main__"


def is_our_own(thing: Any) -> bool:
    return type(thing).__module__.startswith("lockstep.")


def function_of(thing: Any) -> Any:
    """The function behind what stands in a class."""
    if isinstance(thing, (classmethod, staticmethod)):
        thing = thing.__func__
    elif isinstance(thing, property):
        thing = thing.fget
    elif isinstance(thing, functools.cached_property):
        thing = thing.func
    return inspect.unwrap(thing) if hasattr(thing, "__wrapped__") else thing


def attribute_of(thing: Any, name: str, static: Any) -> Any:
    """An attribute's value, where getting it runs nobody's code."""
    own = inspect.getattr_static(thing, name, NEW)
    if isinstance(own, property) and is_users(type(thing)):
        return NEW
    if own is NEW and not isinstance(thing, (nn.Module, ModuleType)):
        return NEW
    if own is not NEW and own is static and is_users(type(own)) and hasattr(type(own), "__get__"):
        return NEW
    if isinstance(thing, nn.Module) and isinstance(inspect.getattr_static(type(thing), "__getattr__"), FunctionType):
        tables = (vars(thing).get(table) or {} for table in ("_parameters", "_buffers", "_modules"))
        if own is NEW:
            return next((one[name] for one in tables if name in one), NEW)
    try:
        return getattr(thing, name)
    except Exception:  # noqa: BLE001 - a property of a library may raise anything
        return NEW


def holds(module: nn.Module, name: str) -> bool:
    """Whether a module's state has what is assigned to an attribute."""
    saved = name in module._parameters or name in module._modules or name == "training"  # noqa: SLF001
    saved = saved or (name in module._buffers and name not in module._non_persistent_buffers_set)  # noqa: SLF001
    return saved or type(module).get_extra_state is not nn.Module.get_extra_state


def length(thing: Any) -> int:
    try:
        return len(thing)
    except Exception:  # noqa: BLE001 - of the user's class, or of a library's
        return 1


def hooks_of(thing: Any) -> Iterator[Any]:
    """Functions that run when something of a module, an optimizer or a parameter happens."""
    for name, value in list(getattr(thing, "__dict__", {}).items()):
        if "hooks" in name and isinstance(value, dict):
            yield from list(value.values())
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        found = getattr(thing, name, None) if hasattr(thing, "grad_fn") else None
        yield from list(found.values()) if isinstance(found, dict) else ()


def methods_called(name: str) -> list[FunctionType]:
    """Methods of that name of the script's classes, for an object of which the class is not known."""
    module = sys.modules.get("__main__")
    kinds = (
        [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == "__main__"]
        if module
        else []
    )
    found = (function_of(vars(kind).get(name)) for kind in kinds)
    return [one for one in found if isinstance(one, FunctionType)]
