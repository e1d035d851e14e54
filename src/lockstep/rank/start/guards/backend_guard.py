"""Wrap the functions of torch.distributed that take a backend: `--backend` replaces it, and "lockstep" is known.

The backend itself (`lockstep.torch_backend`) is imported by the first call that wants it, never before.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from lockstep.protocol.backends import backend_for, is_ours
from lockstep.rank.start.guards.wrapping import INIT, NEW_GROUP, CallByName, put_in_place, when_imported

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
            put_in_place(c10d, name, _guarded(name, getattr(c10d, name), wanted, device))

    when_imported("torch.distributed.distributed_c10d", install)


def _guarded(name: str, original: Callable[..., Any], wanted: str, device: str) -> Callable[..., Any]:
    is_first = name == "init_process_group"
    call = CallByName(original, INIT if is_first else NEW_GROUP)

    @functools.wraps(original)
    def with_backend(*args: Any, **kwargs: Any) -> Any:
        try:
            asked = call.look(args, kwargs).get("backend")
        except TypeError:
            return original(*args, **kwargs)  # torch says what is wrong
        if asked is not None or is_first:  # a new group has that of the first one
            asked = backend_for(asked, wanted, device)
            args, kwargs = call.change(args, kwargs, {"backend": asked})
        if is_ours(asked):
            importlib.import_module(OUR_BACKEND)
        return original(*args, **kwargs)

    return with_backend
