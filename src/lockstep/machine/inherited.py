"""What a process has from whoever started it, as the kernel tells it: rights, limits, cores, groups, namespaces, priorities.

A process that stands in for another one must have all of it in common with that one. What it can still take over by itself
(variables, descriptors, the working directory, umask, ignored signals) is not here.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import suppress

_STATUS = (
    "TracerPid", "Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp",
    "Seccomp_filters", "THP_enabled", "Speculation_Store_Bypass", "SpeculationIndirectBranch", "Cpus_allowed",
    "Mems_allowed",
)  # fmt: skip
"""Lines of /proc/PID/status. A process that a debugger follows is like no other."""
_FILES = (
    "limits", "cgroup", "personality", "oom_score_adj", "loginuid", "sessionid", "attr/current", "coredump_filter",
    "setgroups", "uid_map", "gid_map",
)  # fmt: skip
_STAT = {"nice": 16, "real-time priority": 37, "scheduler": 38}
"""Which field of /proc/PID/stat, counted from the state."""
_IOPRIO_GET = {"x86_64": 252, "aarch64": 31}
"""The number of this system call; libc has no function for it."""


def inherited(pid: int) -> dict[str, str]:
    """All of it by name; what the kernel hides is missing.

    Raises:
        OSError: when there is no such process.
    """
    folder = f"/proc/{pid}"
    lines = dict(_fields(_text(f"{folder}/status")))
    stat = _text(f"{folder}/stat").rpartition(")")[2].split()
    found = {name: lines[name] for name in _STATUS if name in lines}
    found |= {name: stat[place] for name, place in _STAT.items()}
    for name in _FILES:
        with suppress(OSError):
            found[name] = _text(f"{folder}/{name}")
    for name in sorted(os.listdir(f"{folder}/ns")):  # noqa: PTH208 - names are enough
        with suppress(OSError):
            found[f"namespace {name}"] = os.readlink(f"{folder}/ns/{name}")  # noqa: PTH115
    with suppress(OSError):
        found["root"] = os.readlink(f"{folder}/root")  # noqa: PTH115
    found["memory policy"] = _memory_policy(folder)
    found["io priority"] = _io_priority(pid)
    return found


def mask_of(pid: int, line: str) -> set[int]:
    """The signals in a line of /proc/PID/status such as SigIgn or SigBlk."""
    bits = int(dict(_fields(_text(f"/proc/{pid}/status")))[line], 16)
    return {number for number in range(1, 65) if bits >> (number - 1) & 1}


def umask_of(pid: int) -> int:
    """The mask of rights for the files that a process makes."""
    return int(dict(_fields(_text(f"/proc/{pid}/status")))["Umask"], 8)


def _fields(status: str) -> Iterator[tuple[str, str]]:
    for line in status.splitlines():
        name, _, value = line.partition(":")
        yield name, value.strip()


def _memory_policy(folder: str) -> str:
    """The policy of `numactl`, as the kernel shows it for the first mapping, which has none of its own."""
    with suppress(OSError, IndexError), open(f"{folder}/numa_maps") as file:  # noqa: PTH123
        return file.readline(4096).split()[1]
    return ""


def _io_priority(pid: int) -> str:
    number = _IOPRIO_GET.get(platform.machine())
    return "" if number is None else str(ctypes.CDLL(None).syscall(number, 1, pid))


def _text(path: str) -> str:
    with open(path, errors="replace") as file:  # noqa: PTH123 - a third of pathlib's time
        return file.read()
