"""Folders that are held by a lock while they are used: one that nobody holds is a left-over, in whatever container its maker was.

Each is made under another name, locked, and then renamed: under its own name it is never without a lock. A lock ends with the
last process that has it. Nothing is asked of the processes, and no socket in such a folder is connected to.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType

UNFINISHED = "."
"""Before the name of one that is not locked yet."""
MADE_WITHIN_S = 60.0
"""An unfinished one that is older will not be finished."""
HELD = "held"
"""A file in each that several may make: a folder that is not empty is never replaced by a rename."""
LOCKED = ".held"
"""Behind the name of a temporary folder. Others are not touched."""
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


def make_held(path: Path, lock: int = fcntl.LOCK_EX) -> int:
    """Make a folder of mode 0700 and hold it; the descriptor that does. Raises OSError, also where there is one."""
    unfinished = path.with_name(f"{UNFINISHED}{path.name}.{os.getpid()}")
    unfinished.mkdir(mode=0o700)
    descriptor = os.open(unfinished, _OPEN)
    try:
        # Two that make the same folder: rename replaces only an empty one, so the second fails.
        if lock == fcntl.LOCK_SH:
            (unfinished / HELD).touch()
        fcntl.flock(descriptor, lock)
        unfinished.rename(path)
    except OSError:
        shutil.rmtree(unfinished, ignore_errors=True)
        os.close(descriptor)
        raise
    return descriptor


def hold_together(path: Path) -> int:
    """Hold a folder beside others who do, or make it. Raises OSError where it is not this user's."""
    while True:
        with suppress(FileNotFoundError):
            descriptor = os.open(path, _OPEN)
            try:
                if os.fstat(descriptor).st_uid != os.geteuid():
                    raise PermissionError(f"{path} is another user's")
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                # Another folder, or none: somebody removed this one before it was locked.
                if path.stat().st_ino == os.fstat(descriptor).st_ino:
                    return descriptor
            except OSError:
                os.close(descriptor)
                raise
            os.close(descriptor)
        try:
            return make_held(path, fcntl.LOCK_SH)
        except OSError:
            if not path.is_dir():
                raise


def is_left(path: Path) -> bool:
    """Whether it is a folder of this user that nobody holds."""
    with _taken(path) as is_taken:
        return is_taken


def remove_left(path: Path) -> None:
    """Remove a folder of this user if nobody holds it, and let nobody take hold of it meanwhile."""
    with _taken(path) as is_taken:
        if is_taken:
            shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _taken(path: Path) -> Iterator[bool]:
    """Hold a folder that nobody holds, nor is making; whether that was so."""
    with ExitStack() as ends:
        is_taken = False
        with suppress(OSError):
            descriptor = os.open(path, _OPEN)
            ends.callback(os.close, descriptor)
            status = os.fstat(descriptor)
            is_being_made = path.name.startswith(UNFINISHED) and time.time() - status.st_mtime < MADE_WITHIN_S
            if status.st_uid == os.geteuid() and not is_being_made:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_taken = True
        yield is_taken


def remove_tree(folder: Path) -> None:
    """Remove a folder with everything in it; the kernel makes layer folders that not even their owner may read."""
    for place, folders, _ in os.walk(folder):
        for name in folders:
            path = Path(place) / name
            if not path.is_symlink():
                with suppress(OSError):
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


class TemporaryFolder(AbstractContextManager[Path]):
    """A folder of mode 0700, from here until the end of the `with` block. Removes left-overs of the same name first: those
    whose process was killed.

    Args:
        prefix: how its name begins.
        parent: where it is made; None: where temporary files are.

    Raises:
        OSError: when it cannot be made.
    """

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        name = f"{prefix}{secrets.token_hex(8)}{LOCKED}"
        self.path = (parent or Path(tempfile.gettempdir())).resolve() / name
        self._lock = make_held(self.path)
        for path in self.path.parent.glob(f"{prefix}*{LOCKED}"):
            if is_left(path):
                remove_tree(path)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        remove_tree(self.path)
        os.close(self._lock)
