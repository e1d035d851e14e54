"""Whether the kernel killed a process for lack of memory: counters before and after, to explain a SIGKILL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from lockstep.machine.cores import CGROUP_LIST, CGROUP_ROOT

VMSTAT = Path("/proc/vmstat")
MEMINFO = Path("/proc/meminfo")
_COUNTER = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True)
class MemoryPressure:
    """The kernel's counters at one moment."""

    kills: int
    """Processes killed for lack of memory, on the host and in this control group."""
    available_bytes: int


def read_memory_pressure() -> MemoryPressure:
    """Read the current counters; zeros where the kernel has none."""
    counters = [VMSTAT, *_group_files(_read(CGROUP_LIST), CGROUP_ROOT)]
    kills = sum(int(match.group(1)) for file in counters if (match := _COUNTER.search(_read(file))))
    available = _AVAILABLE.search(_read(MEMINFO))
    return MemoryPressure(kills, int(available.group(1)) * 1024 if available else 0)


def explain_kill(before: MemoryPressure, now: MemoryPressure) -> str:
    """Why a rank got SIGKILL, as far as can be told."""
    free = f"the host has {now.available_bytes / 1e9:.1f} GB free"
    if now.kills > before.kills:
        return f"the kernel killed a process for lack of memory ({free}): use a smaller batch, fewer ranks or workers"
    return f"sent by another process; the kernel reports no shortage of memory ({free})"


def _group_files(groups: str, root: Path) -> list[Path]:
    files = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            files.append(root / path.lstrip("/") / "memory.events")
        elif "memory" in controllers.split(","):
            files += [root / "memory" / path.lstrip("/") / "memory.oom_control"]
    return files


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
