"""How much memory a process may still use: what the host has, bounded by the limits of its control groups (version 2).

The same rule as in native/src/available_memory.cpp, for parts that run without the compiled module.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from lockstep.machine.cores import CGROUP_LIST, CGROUP_ROOT
from lockstep.machine.memory_pressure import read_memory_pressure


def available_bytes(group_list: Path = CGROUP_LIST, root: Path = CGROUP_ROOT) -> int:
    """The smallest of what the host and each group have left; 0 when nothing is known."""
    host = read_memory_pressure().available_bytes
    return min([host, *(left for group in _groups(group_list, root) if (left := left_in(group)) is not None)])


def left_in(group: Path) -> int | None:
    """What is left in one control group; None when it has no limit. Cached files count as free: the kernel drops them."""
    try:
        limit, used = int((group / "memory.max").read_text()), int((group / "memory.current").read_text())
        lines = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        cached = sum(int(size) for name, size in lines if name in ("active_file", "inactive_file"))
    except (OSError, ValueError):
        return None
    return max(limit - (used - min(used, cached)), 0)


def _groups(group_list: Path, root: Path) -> Iterator[Path]:
    """This process's group and all above it, the root too: in a container it has a limit."""
    try:
        lines = group_list.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        if line.startswith("0::"):
            group = root / line[3:].lstrip("/")
            while group.is_relative_to(root):
                yield group
                group = group.parent
