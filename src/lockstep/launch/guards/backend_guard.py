"""Wrap the functions of torch.distributed that take a backend: `--backend` replaces it, and "lockstep" is known.

The backend itself (`lockstep.torch_backend`) is imported by the first call that wants it, never before.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from lockstep.errors import UsageError
from lockstep.launch.guards.wrapping import INIT, NEW_GROUP, CallByName, put_in_place, when_imported

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


OURS = "lockstep"
BACKENDS = (OURS, "gloo", "nccl", "mpi")
"""What may be asked for."""
FOR_CPU = frozenset({OURS, "gloo", "mpi"})


def check_backend(name: str, device: str, compiled: bool) -> None:
    """Refuse what cannot work before anything starts.

    Args:
        name: what was asked for.
        device: where the ranks compute.
        compiled: whether the compiled part of lockstep is installed.

    Raises:
        UsageError: with the fix.
    """
    if name not in BACKENDS:
        raise UsageError(f"There is no backend {name!r}.", f"Use one of {', '.join(BACKENDS)}.")
    if name == OURS and not compiled:
        raise UsageError(
            "The backend lockstep needs the compiled part of lockstep, which is not installed here.",
            "Install g++ and lockstep again, or use gloo.",
        )
    if name == "nccl" and device == "cpu":
        raise UsageError("The backend nccl needs a GPU for each rank, but these ranks compute on the CPU.", "Use gloo.")


def backend_for(asked: str | None, wanted: str, device: str) -> str | None:
    """The backend of one call: `wanted` in place of a single one that it can replace, else as asked.

    A name for each device ("cpu:gloo,cuda:nccl") stays, because lockstep's group cannot be part of such a mixture; and
    on a GPU a CPU backend does not replace NCCL.

    Args:
        asked: what the script asks for; None leaves it to torch.
        wanted: what was asked for on the command line or in `spawn`; empty for nothing.
        device: where the ranks compute.
    """
    name = (asked or "").lower().removeprefix("cpu:")
    known = name in BACKENDS or not name
    keeps_gpus = device == "cuda" and wanted in FOR_CPU and name in ("", "nccl")
    return wanted if wanted and known and not keeps_gpus else asked


def is_ours(backend: str | None) -> bool:
    """Whether lockstep's own backend is part of it."""
    return OURS in {part.rpartition(":")[2] for part in (backend or "").lower().split(",")}
