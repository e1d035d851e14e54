"""The folder of the sockets of nurseries that wait. Only its owner can enter it; one that others could enter is not used.

All paths go through an open descriptor of the folder: nobody can put another folder in its place meanwhile, and a long path
is no matter to a socket.
"""

from __future__ import annotations

import os
import stat

from lockstep.machine.this_machine import machine_and_start

TYPE_CHECKING = False  # `typing` alone takes longer to import than asking a nursery
if TYPE_CHECKING:
    from collections.abc import Mapping

NAME = "lockstep-warm"


def places(variables: Mapping[str, str], user: int) -> list[str]:
    """Where the folder may be, the best place first: the user's runtime folder, which ends with a login, or the cache."""
    runtime = [variables.get("XDG_RUNTIME_DIR", ""), f"/run/user/{user}"]
    home, cache = variables.get("HOME", ""), variables.get("XDG_CACHE_HOME", "")
    if not cache.startswith("/"):  # the specification says to ignore others
        cache = f"{home}/.cache" if home else ""
    return [f"{one}/{NAME}" for one in dict.fromkeys([*runtime, cache]) if one.startswith("/")]


def open_folder(path: str) -> int | None:
    """A descriptor of the folder; None when there is none that only this user can enter."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    found = os.fstat(folder)
    if found.st_uid == os.geteuid() and not found.st_mode & 0o077:
        return folder
    os.close(folder)
    return None


def make_folder(variables: Mapping[str, str]) -> tuple[int, str] | None:
    """Open the folder at the first place where it is, or can be made; its path too. None: at no place."""
    for path in places(variables, os.geteuid()):
        parent = os.path.dirname(path)  # noqa: PTH120
        try:
            if parent.endswith("/.cache"):
                _make(parent)
            _make(path)
        except OSError:  # it is there, or its parent is not, or not ours
            pass
        if (folder := open_folder(path)) is not None:
            return folder, path
    return None


def _make(path: str) -> None:
    """Make one folder, but none in another user's, which root could do under `sudo`: that user could not use it any more."""
    if not os.path.lexists(path) and may_make(os.path.dirname(path)):  # noqa: PTH120
        os.mkdir(path, 0o700)  # noqa: PTH102


def may_make(parent: str) -> bool:
    """Whether the folder in which one would be made is this user's, or root's."""
    return os.stat(parent).st_uid in (os.geteuid(), 0)  # noqa: PTH116


def socket_name() -> str:
    """A name for this process's socket. A folder may be shared by machines (a home on NFS), so it names the machine's start."""
    return f"{_this_start()}-{os.getpid()}"


def sockets(folder: int) -> list[str]:
    """The names of this machine's sockets in an open folder, the newest first."""
    here = f"{_this_start()}-"
    found = []
    for name in os.listdir(folder):
        if name.startswith(here):
            try:
                about = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISSOCK(about.st_mode):
                found.append((about.st_mtime_ns, name))
    return [name for _, name in sorted(found, reverse=True)]


def address(folder: int, name: str) -> str:
    """Where to bind or connect."""
    return f"/proc/self/fd/{folder}/{name}"


def _this_start() -> str:
    return machine_and_start().replace("/", "")[:8]
