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

PATIENCE_S = 5.0


@lru_cache
def py_spy() -> str:
    """Its path; empty when it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or ""


def dump(pid: int) -> str:
    """The stacks of all threads in py-spy's JSON; empty when they cannot be read. Does not stop the process."""
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
