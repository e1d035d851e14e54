"""What the nursery imports once for all ranks, as the script's text suggests it.

torch's optimizers import its compiler: 1.2 s of a core and 67 MiB in every rank, or once in the nursery for all. A
script that never makes an optimizer should not wait for it. Two ranks that make one ended after 2.3 s instead of 3.0,
eight after 3.5 instead of 6.9 (2 cores).
"""

from __future__ import annotations

import os
from pathlib import Path

from lockstep.launcher.request import LaunchRequest
from lockstep.machine.regular_file import read_regular
from lockstep.machine.torch_private import COMPILER

TORCH = ("torch",)
FOR_OPTIMIZERS = (*TORCH, COMPILER)
OURS = ("lockstep.rank.run.start",)
READ_BYTES = 1 << 20


def modules_for(request: LaunchRequest) -> tuple[str, ...]:
    """The modules for one run; none when every rank is a fresh interpreter."""
    if request.fresh:
        return ()
    text = _text(request)
    return (*(FOR_OPTIMIZERS if "optim" in text else TORCH), *(OURS if "lockstep" in text else ()))


def _text(request: LaunchRequest) -> str:
    """The beginning of the script, or of the module's file as far as a path leads to it; empty when there is none."""
    paths = [request.script] if request.script is not None else _paths_of(request.module or "")
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
