"""Wrap the functions of torch.distributed that take a backend: `--backend` replaces it, and "lockstep" is known.

The backend itself (`lockstep.torch_backend`) is imported by the first call that wants it, never before.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

from lockstep.launch.guards.after_import import put_in_place, when_imported
from lockstep.launch.guards.backend_rules import backend_for, is_ours

OUR_BACKEND = "lockstep.torch_backend"
"""By name, because that module belongs inside a rank."""


def guard_backends(wanted: str, device: str) -> None:
    """Install the guard, now or when the script imports torch.distributed.

    Args:
        wanted: what was given on the command line; empty for nothing.
        device: where the ranks compute.
    """

    def install(c10d: ModuleType) -> None:
        for name in ("init_process_group", "new_group"):
            put_in_place(c10d, name, _guarded(getattr(c10d, name), wanted, device))

    when_imported("torch.distributed.distributed_c10d", install)


def _guarded(original: Callable[..., Any], wanted: str, device: str) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def with_backend(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:
            return original(*args, **kwargs)  # torch says what is wrong
        asked = given.arguments.get("backend")
        if asked is not None or original.__name__ == "init_process_group":  # a new group has that of the first one
            given.arguments["backend"] = backend_for(asked, wanted, device)
        if is_ours(given.arguments.get("backend")):
            importlib.import_module(OUR_BACKEND)
        return original(*given.args, **given.kwargs)

    return with_backend
