"""Where a rank's process lives, and whether it still does: what can be shared with it, and whether to wait for it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from samebits.errors import UsageError
from samebits.machine.this_machine import machine_and_start


@dataclass(frozen=True)
class RankProcess:
    """A process, as other processes know it."""

    boot: str
    """The machine and its last boot."""
    process_names: str
    """The PID namespace."""
    process: int = 0
    """Its process id there; 0 when it is unknown."""
    started: int = 0
    """When it began, in ticks since boot: process ids are reused."""
    cpus: tuple[int, ...] = ()
    """Where it may run; empty when it does not say."""
    threads: int = 1
    """With how many threads it computes."""

    @classmethod
    def here(cls, threads: int = 1) -> RankProcess:
        boot = machine_and_start()
        process_names = str(Path("/proc/self/ns/pid").readlink())
        process, cpus = os.getpid(), tuple(sorted(os.sched_getaffinity(0)))
        # /proc belongs to another namespace, with other ids.
        if Path("/proc/self").readlink().name != str(process):
            return cls(boot, process_names, cpus=cpus, threads=threads)
        return cls(boot, process_names, process, _state(process)[1], cpus, threads)

    def has_ended(self, mine: RankProcess) -> bool:
        """Whether the process is gone, as seen from `mine`. False where that cannot be seen, as on another machine."""
        if not (self.process and mine.process) or (self.boot, self.process_names) != (mine.boot, mine.process_names):
            return False
        try:
            state, started = _state(self.process)
        except (FileNotFoundError, ProcessLookupError):
            return True
        except OSError:
            return False
        return state in "ZX" or started != self.started


def _state(process: int) -> tuple[str, int]:
    """The process's state letter (Z: dead, but not reaped), and when it began."""
    # The name in parentheses may hold spaces and parentheses, so the fields are counted from its end.
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return fields[0], int(fields[19])


def objection(places: Sequence[RankProcess]) -> UsageError | None:
    """Why these ranks cannot share memory; None when they can."""
    elsewhere = [rank for rank, place in enumerate(places) if place.boot != places[0].boot]
    if not elsewhere:
        return None
    return UsageError(
        f"The backend samebits works between processes of one machine, but rank {elsewhere[0]} is on another machine "
        "than rank 0.",
        "Use gloo or nccl for this group.",
    )
