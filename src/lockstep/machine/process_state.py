"""What the kernel tells about another process: its state, its processor time, what it read and wrote."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lockstep.machine.leftovers import PROC

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class ProcessState:
    """One process."""

    letter: str
    """As `ps` shows it: R, S, D, T (stopped), t (a debugger has it), Z; R while py-spy has it."""
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
        letter = "R" if fields[0] == "t" and _is_only_looked_at(pid, proc) else fields[0]
        return ProcessState(letter, (int(fields[11]) + int(fields[12])) * TICK_S)
    return None


def _is_only_looked_at(pid: int, proc: Path) -> bool:
    """Whether py-spy, for some hundredths of a second, or nobody any more, holds a process that a debugger had stopped."""
    with suppress(OSError, ValueError, IndexError):
        status = (proc / str(pid) / "status").read_text(errors="replace")
        tracer = int(status.partition("\nTracerPid:")[2].split()[0])
        return tracer == 0 or (proc / str(tracer) / "comm").read_text().strip() == "py-spy"
    return True


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
