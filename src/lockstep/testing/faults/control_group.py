"""A control group of its own for the calling process; needs root. What it makes, `remove` removes when that has ended."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from lockstep.errors import EnvironmentFailure

ROOT = Path("/sys/fs/cgroup")
_PREFIX = "lockstep-fault-"


def enter(controller: str, old: dict[str, str], new: dict[str, str]) -> None:
    """Move the calling process into a new group with limits.

    Args:
        controller: `cpu` or `memory`.
        old: what to write into which file where each controller has its own tree (version 1).
        new: the same for version 2.

    Raises:
        EnvironmentFailure: the kernel, or whoever runs this container, does not allow it.
    """
    tree = ROOT / controller
    parent, limits = (tree / _own_path(controller), old) if tree.is_dir() else (ROOT, new)
    group = parent / f"{_PREFIX}{os.getpid()}"
    try:
        group.mkdir()
        for name, value in limits.items():
            (group / name).write_text(value)
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        remove(os.getpid())
        raise EnvironmentFailure(f"a control group for {controller} cannot be made here: {error}") from None


def remove(pid: int) -> None:
    """Remove the groups that this process, which has ended, has made."""
    for group in ROOT.rglob(f"{_PREFIX}{pid}"):
        with suppress(OSError):
            group.rmdir()


def _own_path(controller: str) -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return path.strip("/")
    return ""
