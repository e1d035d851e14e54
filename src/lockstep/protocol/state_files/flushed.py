"""What must be on the disk before the next thing is: files, and the entries of folders."""

from __future__ import annotations

import contextlib
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
