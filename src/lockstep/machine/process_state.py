"""What the kernel tells about another process: its state, its processor time, what it read and wrote."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lockstep.machine.leftovers import PROC, descendants

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class ProcessState:
    """One process."""

    letter: str
    """As `ps` shows it: R, S, D, T (stopped), t (a debugger has it), Z."""
    processor_s: float
    """Since it began."""

    @property
    def is_stopped(self) -> bool:
        """Whether a signal or a debugger has stopped it."""
        return self.letter in {"T", "t"}


def process_state(pid: int, proc: Path = PROC) -> ProcessState | None:
    """The state of a process; None when there is none of this number."""
    with suppress(OSError, ValueError, IndexError):
        fields = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return ProcessState(fields[0], (int(fields[11]) + int(fields[12])) * TICK_S)
    return None


def processor_s_below(pid: int, proc: Path = PROC) -> float:
    """The processor time of all processes that a process has started, and they in turn."""
    states = [process_state(each, proc) for each in descendants(pid, proc)]
    return sum(state.processor_s for state in states if state is not None)


def file_bytes(pid: int, proc: Path = PROC) -> int:
    """What a process has read and written, files and pipes; 0 where the kernel does not tell."""
    with suppress(OSError, ValueError):
        lines = (proc / str(pid) / "io").read_text().splitlines()
        counts = dict(line.split(": ") for line in lines)
        return int(counts.get("rchar", 0)) + int(counts.get("wchar", 0))
    return 0


def began_ticks(pid: int, proc: Path = PROC) -> int:
    """When a process began, in ticks since the machine did: numbers of processes are used again; 0 when there is none."""
    with suppress(OSError, ValueError, IndexError):
        return int((proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[19])
    return 0


def sleeps_of(pid: int, proc: Path = PROC) -> int:
    """How often the first thread of a process has fallen asleep since it began; 0 where the kernel does not tell."""
    with suppress(OSError, ValueError, IndexError):
        text = (proc / str(pid) / "status").read_text(errors="replace")
        return int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return 0


def resident_bytes(pid: int, proc: Path = PROC) -> int:
    """The memory of a process that is in RAM, with what it shares; 0 when there is none."""
    with suppress(OSError, ValueError, IndexError):
        return int((proc / str(pid) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def started_with(pid: int, variable: str, proc: Path = PROC) -> bool:
    """Whether there is a process of this number that was started with an environment variable of this name."""
    with suppress(OSError):
        return any(
            one.startswith(f"{variable}=".encode()) for one in (proc / str(pid) / "environ").read_bytes().split(b"\0")
        )
    return False
