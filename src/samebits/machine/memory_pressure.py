"""Whether the kernel killed a process for lack of memory, and whose memory was short: counters before and after."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from samebits.machine.cores import CGROUP_LIST, CGROUP_ROOT, group_folders

VMSTAT = Path("/proc/vmstat")
MEMINFO = Path("/proc/meminfo")
_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_REACHED = re.compile(r"^oom (\d+)$", re.MULTILINE)


class Shortage(Enum):
    """Whose memory was short when the kernel killed a process."""

    GROUP = auto()
    """The control group's: its limit was reached."""
    HOST = auto()


@dataclass(frozen=True)
class MemoryPressure:
    """The kernel's counters at one moment."""

    kills: int
    """Processes of this control group killed for lack of memory, its own or the host's."""
    host_kills: int
    """Those of all control groups."""
    reached: int
    """How often this control group, or one around it, reached its limit."""
    limit_bytes: int
    """The smallest limit of this control group and those around it; 0 where there is none."""
    available_bytes: int
    """Of the host."""
    total_bytes: int
    """Of the host."""
    counts: bool = True
    """Whether the kernel counts kills for lack of memory at all."""


def read_memory_pressure(groups: Path = CGROUP_LIST, root: Path = CGROUP_ROOT) -> MemoryPressure:
    """Read the current counters; zeros where the kernel has none.

    Args:
        groups: the list of this process's control groups.
        root: where they are mounted.
    """
    folders = group_folders(_read(groups), root, "memory")
    own = [text for folder in folders for name in _EVENTS if (text := _read(folder / name))][:1]
    host_kills, kills = (_found(_KILLS, text) for text in (_read(VMSTAT), "".join(own)))
    reached = sum(_found(_REACHED, _read(folder / "memory.events")) for folder in folders)
    reached += sum(_number(folder / "memory.failcnt") for folder in folders)
    host, limits = _read(MEMINFO), [_number(folder / name) for folder in folders for name in _LIMITS]
    total = _kilobytes(host, "MemTotal")
    limit = min((limit for limit in limits if 0 < limit < total), default=0)
    counts = bool(_KILLS.search("\n".join([_read(VMSTAT), *own])))
    return MemoryPressure(kills, host_kills, reached, limit, _kilobytes(host, "MemAvailable"), total, counts)


_EVENTS = ("memory.events", "memory.oom_control")
"""Of the second and of the first version of control groups; there is one of them."""
_LIMITS = ("memory.max", "memory.limit_in_bytes")


def shortage(before: MemoryPressure, now: MemoryPressure) -> Shortage | None:
    """Whose memory was short between two moments, if the kernel killed a process of this control group for it."""
    # [Note: why only the group's own counter proves a kill]
    # The host's counter rises for every process on it, another user's or another container's too. The kernel counts each
    # victim in the victim's own group, whoever ran short.
    if now.kills <= before.kills:
        return None
    return Shortage.GROUP if now.limit_bytes and now.reached > before.reached else Shortage.HOST


def is_calm(before: MemoryPressure, now: MemoryPressure) -> bool:
    """Whether nothing points to a lack of memory between two moments, so that a SIGKILL came from somebody else.

    Daemons that kill before the kernel does, and that nobody counts, do so where less than a tenth is left.
    """
    is_same = (now.kills, now.host_kills, now.reached) == (before.kills, before.host_kills, before.reached)
    return now.counts and is_same and now.available_bytes * 10 >= now.total_bytes > 0


def explain_kill(before: MemoryPressure, now: MemoryPressure) -> str:
    """Why a process got SIGKILL between two moments, as far as can be told."""
    short = shortage(before, now)
    free = f"{now.available_bytes / 1e9:.1f} of {now.total_bytes / 1e9:.1f} GB free"
    if short is Shortage.GROUP:
        limit = f"{now.limit_bytes / 1e9:.1f} GB"
        return f"the kernel killed it for lack of memory: its control group may use {limit} (the host has {free})"
    if short is Shortage.HOST:
        return f"the kernel killed it for lack of memory: the host has {free}"
    if now.host_kills > before.host_kills:
        return f"another process may have sent it, or the kernel, which has killed some process of this host for lack of memory ({free})"
    return f"sent by another process; the kernel reports no shortage of memory ({free})"


def _found(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.search(text)
    return int(found[1]) if found else 0


def _kilobytes(text: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _number(file: Path) -> int:
    text = _read(file).strip()
    return int(text) if text.isdecimal() else 0


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def available_bytes(group_list: Path = CGROUP_LIST, root: Path = CGROUP_ROOT) -> int:
    """The smallest of what the host and each group have left; 0 when nothing is known."""
    host = read_memory_pressure().available_bytes
    # The root is one of them: in a container it is the container's group and has a limit.
    groups = group_folders(_read(group_list), root, "memory")
    return min([host, *(left for group in groups if (left := left_in(group)) is not None)])


def left_in(group: Path) -> int | None:
    """What is left in one control group; None when it has no limit. Cached files count as free: the kernel drops them."""
    try:
        limit, used = int((group / "memory.max").read_text()), int((group / "memory.current").read_text())
        lines = (line.split() for line in (group / "memory.stat").read_text().splitlines())
        cached = sum(int(size) for name, size in lines if name in ("active_file", "inactive_file"))
    except (OSError, ValueError):
        return None
    return max(limit - (used - min(used, cached)), 0)
