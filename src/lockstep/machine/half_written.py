"""Libraries of torch's compiler (Inductor) that a killed compilation left half written in its cache.

Inductor takes what is there for whole: to load half a library ends the process with SIGBUS, in every later run. Its locks are
the kernel's, so no dead process holds one. The linker makes what it writes executable when it closes it, and while a process
of torch's lets it write, that holds the lock of the same name. All else in the cache is renamed into place, or is read by
the compiler only when whole (headers).
"""

from __future__ import annotations

import fcntl
import getpass
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

_EXECUTABLE = 0o100
_ODD = re.compile(r'[\\/:*?"<>|]')


def compiler_cache() -> Path:
    """Where Inductor keeps what it compiled, by the rule that it has itself."""
    if named := os.environ.get("TORCHINDUCTOR_CACHE_DIR"):
        return Path(named)
    try:
        user = getpass.getuser()
    except (KeyError, ModuleNotFoundError, OSError):
        user = f"uid_{os.getuid()}"
    return Path(tempfile.gettempdir()) / ("torchinductor_" + _ODD.sub("_", user))


def remove_half_written(cache: Path) -> list[Path]:
    """Remove the libraries that nobody is writing and that are not whole; return them. 2 us for each that is."""
    removed = []
    for library in cache.glob("*/*.so"):
        with suppress(OSError):  # gone, or another user's
            if not library.lstat().st_mode & _EXECUTABLE and _remove_unless_locked(library):
                removed.append(library)
    return removed


def _remove_unless_locked(library: Path) -> bool:
    lock = library.parents[1] / "locks" / f"{library.name.partition('.')[0]}.lock"
    if lock.exists() and not lock.is_file():  # opening a FIFO would wait
        return False
    with lock.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        library.unlink()
        return True
