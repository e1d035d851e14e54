"""A nursery that an interactive session retains between two calls of `samebits.spawn`, so the second starts at once.

A script gets a new one each time and nothing stays. In a notebook or a prompt one idle process stays until the
session ends; it has imported torch and waits.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from samebits.launcher.nursery.handle import NurseryHandle
from samebits.launcher.request import LaunchRequest
from samebits.launcher.script_source import names_portable, source_place
from samebits.machine.regular_file import read_regular
from samebits.machine.torch_private import COMPILER
from samebits.protocol.arithmetic import Arithmetic
from samebits.protocol.late_settings import PREFIXES
from samebits.protocol.portable import portable_variables

TORCH = ("torch",)
FOR_OPTIMIZERS = (*TORCH, COMPILER)
OURS = ("samebits.rank.run.start",)
READ_BYTES = 1 << 20


def modules_for(request: LaunchRequest) -> tuple[str, ...]:
    """The modules for one run; none when every rank is a fresh interpreter."""
    if request.placement.spawns:
        return ()
    text = _text(request)
    return (*(FOR_OPTIMIZERS if "optim" in text else TORCH), *(OURS if "samebits" in text else ()))


def torch_variables_for(request: LaunchRequest) -> dict[str, str]:
    """The variables of numerics="portable" for one run, before its ranks load torch; see `torch_variables_of`."""
    call = request.entry.call
    if call is not None:
        return portable_variables(os.environ) if call.is_portable else {}
    return torch_variables_of(request.computation.arithmetic, request.entry.script, request.entry.module)


def torch_variables_of(arithmetic: Arithmetic, script: Path | None, module: str | None) -> dict[str, str]:
    """What the command line says counts; else what the script's own text says.

    Raises:
        UsageError: where this machine or installation cannot have the portable bits.
    """
    numerics = arithmetic.numerics
    if numerics is None and (place := source_place(script, module)) is not None and names_portable(*place):
        numerics = "portable"
    return portable_variables(os.environ) if numerics == "portable" else {}


def _text(request: LaunchRequest) -> str:
    """The beginning of the script, or of the module's file as far as a path leads to it; empty when there is none."""
    paths = [request.entry.script] if request.entry.script is not None else _paths_of(request.entry.module or "")
    for path in paths:
        try:
            return read_regular(path, most_bytes=READ_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
    return ""


def _paths_of(module: str) -> list[Path]:
    folders = [Path(), *map(Path, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))]
    inside = Path(*module.split("."))
    return [folder / file for folder in folders for file in (inside.with_suffix(".py"), inside / "__main__.py")]


MODULES = (*TORCH, "cloudpickle")
MODULES_OF_A_SESSION = (*FOR_OPTIMIZERS, *OURS, "cloudpickle")
"""What a session's later calls find imported."""


class KeptNursery:
    """At most one nursery, borrowed by one run at a time."""

    def __init__(self) -> None:
        self._idle: NurseryHandle | None = None
        self._made_for: object = None
        self._lock = threading.Lock()

    @contextmanager
    def lend(self, threads: int, torch_variables: Mapping[str, str]) -> Iterator[NurseryHandle]:
        """Lend a nursery for ranks with `threads` threads and `torch_variables`; then keep it, or end it with everything below it."""
        modules = MODULES_OF_A_SESSION if is_interactive() else MODULES
        wanted = (threads, os.getpid(), _read_once(), tuple(torch_variables.items()))
        nursery = self._take(wanted) or NurseryHandle(threads, modules, torch_variables)
        try:
            yield nursery
        except BaseException:
            nursery.close()
            raise
        if is_interactive() and nursery.ready is not None:
            self._keep(nursery, wanted)
        else:
            nursery.close()

    def close(self) -> None:
        """End the idle one."""
        nursery = self._take(self._made_for)
        if nursery is not None:
            nursery.close()

    def _take(self, wanted: object) -> NurseryHandle | None:
        with self._lock:
            nursery, self._idle = self._idle, None
        if nursery is None or (self._made_for == wanted and nursery.alive):
            return nursery
        if self._made_for_this_process():
            nursery.close()
        return None

    def _made_for_this_process(self) -> bool:
        return isinstance(self._made_for, tuple) and self._made_for[1] == os.getpid()

    def _keep(self, nursery: NurseryHandle, made_for: object) -> None:
        with self._lock:
            surplus, self._idle, self._made_for = self._idle, nursery, made_for
        if surplus is not None:
            surplus.close()


def is_interactive() -> bool:
    """Whether the user types into this process: a prompt or a notebook."""
    return hasattr(sys, "ps1") or main_file() is None


def main_file() -> str | None:
    """The script of this process; None for a prompt, a notebook, and what comes from standard input."""
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return None if file is None or str(file).startswith("<") else str(file)


def _read_once() -> tuple[tuple[str, str], ...]:
    """Settings that libraries read only while loading; with other values a nursery is of no use."""
    names = (*PREFIXES, "PYTHONHASHSEED", "PYTHONPATH")
    return tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith(names)))
