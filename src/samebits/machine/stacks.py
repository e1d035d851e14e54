"""The Python stacks of another process.

py-spy reads them without its help, also when it is stopped, loops, or holds the interpreter's lock. Where the kernel does not
allow that (a container without CAP_SYS_PTRACE under a strict ptrace_scope), or py-spy is not installed, the process is asked by
a signal and writes into a file. The handler is C (faulthandler): it answers while the process holds the interpreter's lock,
sleeps, or loops, but not while it is stopped, and it takes down the thread that gets the signal, which is the first one.
Interrupted calls continue.
"""

from __future__ import annotations

import faulthandler
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from samebits.machine.leftovers import PROC
from samebits.machine.processes import interpreter, interpreter_options, is_wrapped

PATIENCE_S = 5.0
_SLEEPER = """
import os, sys, time
from samebits.machine.processes import let_read
let_read(os.getppid())
print(flush=True)
time.sleep(60)
"""


@lru_cache
def py_spy() -> str:
    """Its path; empty when it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or ""


def dump(pid: int) -> str:
    """The stacks of all threads in py-spy's JSON; empty when they cannot be read. The process is not stopped."""
    if not (command := py_spy()):
        return ""
    try:
        done = subprocess.run(
            [command, "dump", "--nonblocking", "--json", "--pid", str(pid)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def refusal() -> str:
    """Why the stacks of another process of this user cannot be read here; empty if they can. Starts two processes."""
    if not py_spy():
        return "py-spy is not installed"
    command = [interpreter(), *interpreter_options(), "-c", _SLEEPER]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            return "" if dump(other.pid) else "the kernel does not let py-spy read other processes"
        finally:
            other.kill()


# Asked by a signal

ASKS = signal.SIGRTMAX - 6
"""A signal that programs leave alone."""
ANSWERS_WITHIN_S = 0.5
QUIET_S = 0.02
"""An answer to which nothing was added for so long is whole."""
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_CAUGHT = re.compile(r"^SigCgt:\s+([0-9a-f]+)$", re.MULTILINE)


@dataclass(frozen=True)
class Line:
    """One call of a stack."""

    function: str
    file: str
    number: int


def answer_into(file: Path) -> None:
    """From now on this process, and those forked from it, write their stacks into `file` when asked, if it can be made."""
    with suppress(OSError):
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        faulthandler.register(ASKS, file=descriptor, all_threads=False)


def ask(pid: int, file: Path, proc: Path = PROC) -> list[Line]:
    """Ask a process for its stack, the innermost call first; empty when it does not answer within half a second.

    A process that would not catch the signal is not asked: it would end.
    """
    # An emulator catches every signal, also one that what it runs does not expect.
    if not answers(pid, proc) or is_wrapped():
        return []
    with suppress(OSError):
        # A FIFO would let this wait, a device answer for ever.
        if not file.is_file():
            return []
        before = file.stat().st_size
        os.kill(pid, ASKS)
        size, deadline = before, time.monotonic() + ANSWERS_WITHIN_S
        while time.monotonic() < deadline:
            time.sleep(QUIET_S)
            now = file.stat().st_size
            if now == size and now > before:
                break
            size = now
        with file.open("rb") as answers_of_all:
            answers_of_all.seek(before)
            answer = answers_of_all.read(1 << 16).decode(errors="replace")
        found = _FRAME.findall(answer)
        return [Line(function, name, int(number)) for name, number, function in found]
    return []


def answers(pid: int, proc: Path = PROC) -> bool:
    """Whether a process has a handler for the signal."""
    with suppress(OSError):
        match = _CAUGHT.search((proc / str(pid) / "status").read_text(errors="replace"))
        return match is not None and bool(int(match.group(1), 16) >> (ASKS - 1) & 1)
    return False
