"""The cores that this process may use: its affinity, bounded by the CPU quota of its control groups. And what they are.

A container with a quota of two cores on a machine of 64 shows 64 in its affinity; 64 threads there are throttled to a
crawl. Both versions of control groups are read, for this process's group and all groups above it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

CGROUP_LIST = Path("/proc/self/cgroup")
CGROUP_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Cores:
    """How many cores, and where the number comes from."""

    count: int
    why: str


def usable_cores() -> Cores:
    """The cores that this process may use now."""
    return bounded_cores(len(os.sched_getaffinity(0)), [cpu_quota()])


def cpu_quota() -> float:
    """The strictest quota of this process's control groups, in cores; infinity without one."""
    try:
        groups = CGROUP_LIST.read_text()
    except OSError:
        groups = ""
    return min(quotas(groups, CGROUP_ROOT), default=float("inf"))


def bounded_cores(affinity: int, quotas_of_groups: Iterable[float]) -> Cores:
    """The smaller of the affinity and the strictest quota, at least 1. A quota of 2.5 cores counts as 2."""
    quota = min(quotas_of_groups, default=float("inf"))
    if quota < affinity:
        return Cores(max(int(quota), 1), f"cgroup quota of {quota:g}")
    return Cores(affinity, "affinity")


def threads_per_rank(cores: int, ranks: int) -> int:
    """An equal share of the cores, at least 1."""
    return max(cores // ranks, 1)


def one_core_of(allowed: Sequence[set[int]], cores: int) -> int | None:
    """The only core that all of several processes may use, if the machine has more.

    Args:
        allowed: the cores that each process may use.
        cores: how many the machine has.
    """
    together = set().union(*allowed)
    return together.pop() if len(allowed) > 1 and len(together) == 1 < cores else None


def quotas(groups: str, root: Path) -> list[float]:
    """All CPU quotas above this process, in cores.

    Args:
        groups: the text of /proc/self/cgroup: lines `0::/path` (version 2) or `4:cpu,cpuacct:/path` (version 1).
        root: where control groups are mounted.
    """
    folders = group_folders(groups, root, "cpu")
    found = [quota for folder in folders for quota in (_quota_v2(folder / "cpu.max"), _quota_v1(folder))]
    return [quota for quota in found if quota > 0]


def group_folders(groups: str, root: Path, controller: str) -> list[Path]:
    """The folders of a process's control groups that may have this controller's files, and of all groups above.

    Args:
        groups: the text of /proc/PID/cgroup, as above.
        root: where control groups are mounted.
        controller: `cpu`, `memory`.
    """
    mounts: list[tuple[Path, str]] = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            # Hybrid systems mount version 2 beside the controllers of version 1.
            mounts += [(mount, path) for mount in (root, root / "unified")]
        elif controller in controllers.split(","):
            # Version 1 mounts `cpu,cpuacct` under this name; `cpu` is usually a link to it.
            mounts += [(mount, path) for mount in {root / controllers, root / controller}]
    return [folder for mount, path in mounts for folder in _upwards(mount, path)]


def _upwards(mount: Path, path: str) -> list[Path]:
    """The group's folder and all above it, up to the mount; inside a container only some of them exist."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    return [mount.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _quota_v2(file: Path) -> float:
    quota, _, period = _read(file).partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else 0.0


def _quota_v1(folder: Path) -> float:
    quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    return int(quota) / int(period) if quota.isdigit() and period.isdigit() else 0.0


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, ValueError):
        return ""


# What a core is


CPUS = Path("/sys/devices/system/cpu")
MOST_LEVELS = 8


def caches(cpu: int, root: Path = CPUS) -> dict[int, int]:
    """Bytes by level, of those that hold data; empty where the kernel does not say. Several CPUs may share one."""
    found: dict[int, int] = {}
    for index in range(MOST_LEVELS):
        folder = root / f"cpu{cpu}" / "cache" / f"index{index}"
        level, kind, size = (_read(folder / name) for name in ("level", "type", "size"))
        if kind in ("Data", "Unified") and re.fullmatch("[1-9]", level) and re.fullmatch("[1-9][0-9]{0,8}K", size):
            found[int(level)] = int(size[:-1]) << 10
    return found


CPUINFO = Path("/proc/cpuinfo")
KINDS = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "asimd", "sve", "sve2", "vsx")
"""The flags by which libraries choose their kernels."""


def model_and_instructions(cpuinfo: Path = CPUINFO) -> tuple[str, str]:
    """The model's name and the instruction sets that libraries choose kernels by; empty where the kernel does not say."""
    names = dict(re.findall(r"^(model name|flags|Features|cpu)\s*:\s*(.*)$", _read(cpuinfo), re.MULTILINE))
    flags = set((names.get("flags") or names.get("Features") or "").split())
    return names.get("model name") or names.get("cpu") or "", " ".join(kind for kind in KINDS if kind in flags)
