"""Facts and settings of this process: its ties to its parent, its interpreter's options, its limit of open files."""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import signal
import sys
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from samebits.machine.leftovers import PROC

WRAPPER = "SAMEBITS_PYTHON"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def die_with_parent(parent: int) -> None:
    """Get SIGKILL when the parent ends.

    Args:
        parent: the process that must be the parent now; if it has ended already, this process ends here.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # A parent that ended before the call sends no signal.
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def set_parent_death_signal(number: signal.Signals) -> None:
    """Get this signal, not SIGKILL, when the parent ends. SIGCONT: a process that was stopped then sees that it is alone."""
    _prctl(_PR_SET_PDEATHSIG, number)


def let_read(reader: int) -> None:
    """Let a process and those below it read this one's memory where Yama allows it to ancestors only (ptrace_scope 1)."""
    # A kernel without Yama has no such option.
    with suppress(OSError):
        _prctl(_PR_SET_PTRACER, reader)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, instead of process 1; an emulator of CPUs can't do that."""
    with suppress(OSError) if is_wrapped() else nullcontext():
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def interpreter() -> str:
    """The Python of every process that samebits starts: SAMEBITS_PYTHON where that is set, for one behind an emulator, else this one."""
    return os.environ.get(WRAPPER) or sys.executable


def is_wrapped() -> bool:
    """Whether that is a wrapper, behind which there may be an emulator, with fewer calls and other signals than the kernel's."""
    return WRAPPER in os.environ


def interpreter_options() -> list[str]:
    """This interpreter's own options (-O, -W, -X, ...), without -P, which our commands add themselves."""
    flags = sys.flags
    if not (sys.warnoptions or sys._xoptions or flags.optimize or flags.isolated or flags.verbose):  # noqa: SLF001
        return []
    # The standard library's own way to pass them to a child; multiprocessing relies on it too.
    options: list[str] = importlib.import_module("subprocess")._args_from_interpreter_flags()  # noqa: SLF001
    return [option for option in options if option != "-P"]


def open_file_limit() -> int:
    """The limit in force; -1 for none."""
    return _limits(resource.RLIMIT_NOFILE)[0]


def _limits(which: int) -> list[int]:
    return [-1 if limit == resource.RLIM_INFINITY else limit for limit in resource.getrlimit(which)]


def address_limit() -> int:
    """How many bytes of addresses a process may have; -1 for any number."""
    return _limits(resource.RLIMIT_AS)[0]


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
        # py-spy stops a process with ptrace while it reads it.
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


ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Ctrl-C; a polite end; a closed terminal; SLURM's warning that the time is nearly over (--signal=USR1@90)."""


def signal_name(number: int) -> str:
    """`signal 9 (SIGKILL)`."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
