"""What keeps a process from running that it has not asked for: its control group, other processes, too little memory.

Counters that grow; two looks at them tell what happened between. Both versions of control groups are read.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lockstep.machine.cores import CGROUP_ROOT, group_folders, quotas
from lockstep.machine.leftovers import PROC

_THROTTLED = re.compile(r"^throttled_(usec|time) (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class HeldBack:
    """Of one process, in seconds since some moment that is always the same; 0 where the kernel does not tell."""

    run_delay_s: float = 0.0
    """How long its first thread could have run, and had no core."""
    throttled_s: float = 0.0
    """How long its control groups were held back by their quota, added up over cores."""
    quota: float = 0.0
    """The strictest quota, in cores; 0: none."""
    major_faults: int = 0
    """Pages that it had to wait for."""


def held_back(pid: int, proc: Path = PROC, root: Path = CGROUP_ROOT) -> HeldBack:
    """The counters of a process."""
    folder = proc / str(pid)
    groups = _read(folder / "cgroup")
    throttled_s = 0.0
    for group in group_folders(groups, root, "cpu"):
        if match := _THROTTLED.search(_read(group / "cpu.stat")):
            throttled_s += int(match.group(2)) / (1e6 if match.group(1) == "usec" else 1e9)
    return HeldBack(
        _run_delay_s(folder),
        throttled_s,
        min(quotas(groups, root), default=0.0),
        _major_faults(folder),
    )


def _run_delay_s(folder: Path) -> float:
    with suppress(ValueError, IndexError):
        return int(_read(folder / "schedstat").split()[1]) / 1e9
    return 0.0


def _major_faults(folder: Path) -> int:
    with suppress(ValueError, IndexError):
        return int(_read(folder / "stat").rpartition(")")[2].split()[9])
    return 0


def _read(file: Path) -> str:
    with suppress(OSError):
        return file.read_text(errors="replace")
    return ""
