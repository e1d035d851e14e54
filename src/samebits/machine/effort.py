"""What processes have done since they began: processor time, bytes, data that woke them up.

Threads that samebits runs inside a rank name themselves (`name_own_thread`) and are left out: they work beside the script.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from platform import machine

from samebits.machine.cores import CGROUP_ROOT, group_folders, quotas
from samebits.machine.leftovers import PROC
from samebits.machine.processes import TICK_S, sleeps_of

OWN = "samebits:"
"""How the kernel's names of samebits's own threads begin."""
MOVES_DATA = {
    "x86_64": {0, 1, 17, 18, 19, 20, 40, 43, 44, 45, 46, 47, 288, 326},
    "aarch64": {63, 64, 65, 66, 67, 68, 71, 202, 206, 207, 211, 212, 242, 285},
}.get(machine(), set())
"""The numbers of the kernel's calls that read and write: read, write, readv, recvfrom, sendto, accept and their kind."""


@dataclass(frozen=True)
class Effort:
    """Counters that grow, all threads and children added up; a child that has ended counts once it was waited for."""

    processor_s: float = 0.0
    file_bytes: int = 0
    """Read and written by `read` and `write`: files, pipes, some sockets."""
    wakes: Mapping[int, int] = field(default_factory=dict)
    """How often each thread has fallen asleep that is in a read or write now: it wakes up when data comes or goes."""


def name_own_thread(name: str, proc: Path = PROC) -> None:
    """Give the calling thread a name by which `effort` knows that it is samebits's; at most 6 letters."""
    with suppress(OSError):
        (proc / "thread-self" / "comm").write_text(OWN + name)


def effort(pids: Iterable[int], proc: Path = PROC) -> Effort:
    """The counters of these processes together; what the kernel does not tell counts as nothing."""
    processor_s, file_bytes, wakes = 0.0, 0, dict[int, int]()
    for each in pids:
        processor_s += _processor_s(proc / str(each), with_children=True)
        file_bytes += _file_bytes(proc / str(each))
        for thread in _threads(proc / str(each)):
            if _read(thread / "comm").startswith(OWN):
                processor_s -= _processor_s(thread)
                file_bytes -= _file_bytes(thread)
            elif _moves_data(thread):
                wakes[int(thread.name)] = sleeps_of(int(thread.name), thread.parent)
    return Effort(processor_s, file_bytes, wakes)


def _threads(process: Path) -> list[Path]:
    with suppress(OSError):
        return list((process / "task").iterdir())
    return []


def _processor_s(folder: Path, *, with_children: bool = False) -> float:
    with suppress(ValueError, IndexError):
        # Behind the name: utime, stime, and of children that were waited for cutime, cstime (proc(5)).
        fields = _read(folder / "stat").rpartition(")")[2].split()
        return sum(map(int, fields[11 : 15 if with_children else 13])) * TICK_S
    return 0.0


def _file_bytes(folder: Path) -> int:
    with suppress(ValueError):
        counts = dict(line.split(": ") for line in _read(folder / "io").splitlines())
        return int(counts.get("rchar", 0)) + int(counts.get("wchar", 0))
    return 0


def _moves_data(thread: Path) -> bool:
    number = _read(thread / "syscall").partition(" ")[0].strip()
    return number.isdigit() and int(number) in MOVES_DATA


def _read(file: Path) -> str:
    with suppress(OSError):
        return file.read_text(errors="replace")
    return ""


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
        # Time on a core, time in the run queue, number of slices.
        return int(_read(folder / "schedstat").split()[1]) / 1e9
    return 0.0


def _major_faults(folder: Path) -> int:
    with suppress(ValueError, IndexError):
        return int(_read(folder / "stat").rpartition(")")[2].split()[9])
    return 0
