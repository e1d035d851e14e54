"""What must be on the disk before the next thing is, and two folders that change places in one step of the kernel's."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from pathlib import Path

_NOT_HERE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF)
"""Errors of file systems that cannot flush a folder."""


def sync(folder: Path) -> None:
    """Flush a folder's entries to the disk, where its file system can. Raises OSError when the disk fails."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NOT_HERE:
            raise
    finally:
        os.close(handle)


def write_synced(path: Path, text: bytes) -> None:
    """Write a small file and flush it to the disk."""
    with path.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def make_synced(folder: Path) -> None:
    """Make a folder and those above it; new ones are flushed to the disk."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for one in missing:
        sync(one.parent)


def sync_above(folder: Path, levels: int) -> None:
    """Flush the entries of this folder and of those above it, which somebody else made; not where they cannot be read."""
    for one in (folder, *folder.parents)[:levels]:
        with contextlib.suppress(PermissionError):
            sync(one)


_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV, errno.EPERM)
"""Errors of file systems that cannot; there, two renames in a row have to do."""


def exchange(one: Path, other: Path) -> bool:
    """Swap `one` and `other`, which must both be there; False if the file system cannot.

    Raises:
        OSError: when it could, but not with these.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))
