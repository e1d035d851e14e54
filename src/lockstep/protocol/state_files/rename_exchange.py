"""Two folders change places in one step of the kernel's: `renameat2` with RENAME_EXCHANGE, for which Python has no name."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NOT_HERE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV, errno.EPERM)
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
    if code in _NOT_HERE:
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))
