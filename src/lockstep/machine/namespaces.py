"""Linux namespaces and what is done in them: system calls that Python 3.11 has no name for."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 0x1000, 0x2000, 0x4000, 0x40000
_CAPABILITY_VERSION_3 = 0x20080522


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)


def unshare(flags: int) -> None:
    """Give this process its own namespaces."""
    _call("unshare", ctypes.c_int(flags))


def enter(descriptor: int) -> None:
    """Enter the namespace of an open file of /proc/PID/ns; only in a process with one thread."""
    _call("setns", ctypes.c_int(descriptor), ctypes.c_int(0))


def attach(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Attach a file system, or move one, as mount(2) does; empty words are null pointers."""
    words = (os.fsencode(word) or None for word in (source, target, kind))
    _call("mount", *words, ctypes.c_ulong(flags), options.encode() or None)


def map_own_user(user: int, group: int) -> None:
    """Keep this user's and group's own numbers in a new user namespace."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - one write, as the kernel demands
            file.write(text)


def is_initial_user_namespace() -> bool:
    """Whether root here is root of the machine: every user has its own number."""
    with open("/proc/self/uid_map") as file:  # noqa: PTH123
        return file.read().split() == ["0", "0", str(2**32 - 1)]


def drop_capabilities() -> None:
    """Drop the rights that the user does not have: entering a user namespace gave all that count inside it."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())
