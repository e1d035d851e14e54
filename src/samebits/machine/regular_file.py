"""Files that somebody else made, opened for reading only if they are regular."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a link",
}


def open_regular(path: str | os.PathLike[str], *, follow: bool = True) -> BufferedReader:
    """Open a regular file for reading bytes.

    Args:
        path: the file.
        follow: whether it may be a link to one.

    Raises:
        OSError: when it is not a regular file (`strerror` says what it is), or cannot be opened.
    """
    # [Note: why a file is named before it is opened]
    # Opening a FIFO would wait for a writer, and opening a device may do anything. O_PATH names the file without opening it; its
    # kind is checked, and that very file is opened, so nobody can put another one in its place meanwhile.
    place = os.open(path, os.O_PATH | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    try:
        _check(os.fstat(place).st_mode, path)
        return os.fdopen(os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except OSError as error:
        error.filename = os.fspath(path)
        raise
    finally:
        os.close(place)


def read_regular(path: str | os.PathLike[str], *, follow: bool = True, most_bytes: int = -1) -> bytes:
    """Read the content, at most `most_bytes` of it. Raises like `open_regular`."""
    with open_regular(path, follow=follow) as file:
        return file.read(most_bytes)


def other_kind(path: str | os.PathLike[str]) -> str:
    """What is there if it is neither a regular file nor a link to one: "a FIFO", "a folder"; empty if nothing is."""
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):
        return ""
    return "" if stat.S_ISREG(mode) else _kind(mode)


def is_regular(path: str | os.PathLike[str]) -> bool:
    """Whether it exists and is a regular file, not a link to one."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _check(mode: int, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"it is {_kind(mode)}, not a regular file", os.fspath(Path(path)))


def _kind(mode: int) -> str:
    return _KINDS.get(stat.S_IFMT(mode), "something else")
