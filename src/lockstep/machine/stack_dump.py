"""The Python stacks of another process, read without its help: also when it is stopped, loops, or holds the GIL.

py-spy reads the interpreter's memory. Where the kernel does not allow that (a container without CAP_SYS_PTRACE under a
strict ptrace_scope), or py-spy is not installed, there are no stacks.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

from lockstep.machine.processes import interpreter_options

PATIENCE_S = 5.0
_SLEEPER = """
import os, sys, time
from lockstep.machine.processes import let_read
let_read(os.getppid())
print(flush=True)
time.sleep(60)
"""


@lru_cache
def py_spy() -> str:
    """Its path; empty when it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or ""


def dump(pid: int, *, native: bool = False) -> str:
    """The stacks of all threads in py-spy's JSON; empty when they cannot be read.

    Args:
        pid: the process.
        native: with the calls of native code between; for that the process is stopped, for some hundredths of a second.
            Otherwise it is not stopped.
    """
    if not (command := py_spy()):
        return ""
    try:
        done = subprocess.run(
            [command, "dump", "--native" if native else "--nonblocking", "--json", "--pid", str(pid)],
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
    command = [sys.executable, *interpreter_options(), "-c", _SLEEPER]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            return "" if dump(other.pid) else "the kernel does not let py-spy read other processes"
        finally:
            other.kill()
