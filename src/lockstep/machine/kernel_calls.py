"""The names of the kernel's calls that a process may sleep in, by their numbers, and which of their arguments is a file."""

from __future__ import annotations

import platform

_X86_64 = (
    (0, "read"), (1, "write"), (2, "open"), (3, "close"), (4, "stat"), (5, "fstat"), (6, "lstat"), (7, "poll"), (17, "pread64"),
    (18, "pwrite64"), (19, "readv"), (20, "writev"), (21, "access"), (23, "select"), (34, "pause"), (35, "nanosleep"),
    (40, "sendfile"), (42, "connect"), (43, "accept"), (44, "sendto"), (45, "recvfrom"), (46, "sendmsg"), (47, "recvmsg"),
    (56, "clone"), (58, "vfork"), (61, "wait4"), (72, "fcntl"), (73, "flock"), (74, "fsync"), (75, "fdatasync"),
    (76, "truncate"), (77, "ftruncate"), (82, "rename"), (83, "mkdir"), (87, "unlink"), (128, "rt_sigtimedwait"),
    (130, "rt_sigsuspend"), (162, "sync"), (202, "futex"), (217, "getdents64"), (230, "clock_nanosleep"), (232, "epoll_wait"),
    (247, "waitid"), (257, "openat"), (258, "mkdirat"), (262, "newfstatat"), (263, "unlinkat"), (270, "pselect6"),
    (271, "ppoll"), (281, "epoll_pwait"), (288, "accept4"), (306, "syncfs"), (326, "copy_file_range"), (332, "statx"),
    (435, "clone3"), (439, "faccessat2"),
)  # fmt: skip
_AARCH64 = (
    (22, "epoll_pwait"), (25, "fcntl"), (32, "flock"), (34, "mkdirat"), (35, "unlinkat"), (45, "truncate"), (46, "ftruncate"),
    (48, "faccessat"), (56, "openat"), (57, "close"), (61, "getdents64"), (63, "read"), (64, "write"), (65, "readv"),
    (66, "writev"), (67, "pread64"), (68, "pwrite64"), (71, "sendfile"), (72, "pselect6"), (73, "ppoll"), (79, "newfstatat"),
    (80, "fstat"), (81, "sync"), (82, "fsync"), (83, "fdatasync"), (95, "waitid"), (98, "futex"), (101, "nanosleep"),
    (115, "clock_nanosleep"), (133, "rt_sigsuspend"), (137, "rt_sigtimedwait"), (202, "accept"), (203, "connect"),
    (206, "sendto"), (207, "recvfrom"), (211, "sendmsg"), (212, "recvmsg"), (220, "clone"), (242, "accept4"), (260, "wait4"),
    (267, "syncfs"), (285, "copy_file_range"), (291, "statx"), (435, "clone3"), (439, "faccessat2"),
)  # fmt: skip
NAMES: dict[int, str] = dict({"x86_64": _X86_64, "aarch64": _AARCH64}.get(platform.machine(), ()))

READS = frozenset(("read", "pread64", "readv", "recvfrom", "recvmsg", "accept", "accept4"))
WRITES = frozenset(("write", "pwrite64", "writev", "sendto", "sendmsg", "sendfile", "copy_file_range"))
LOCKS = frozenset(("flock", "fcntl"))
ON_A_FILE = (
    READS | WRITES | LOCKS | {"fsync", "fdatasync", "ftruncate", "fstat", "getdents64", "syncfs", "close", "connect"}
)
"""Calls whose first argument is the number of an open file."""
POLLS = frozenset(("poll", "ppoll"))
"""Their first arguments are a list of open files and its length."""
WAITS_FOR_ANY = POLLS | {"select", "pselect6", "epoll_wait", "epoll_pwait"}
SLEEPS = frozenset(("nanosleep", "clock_nanosleep", "pause", "rt_sigsuspend", "rt_sigtimedwait"))
CHILDREN = frozenset(("wait4", "waitid"))
_PATH_FIRST = ("open", "stat", "lstat", "access", "rename", "mkdir", "unlink", "truncate")
_PATH_SECOND = ("openat", "newfstatat", "statx", "mkdirat", "unlinkat", "faccessat", "faccessat2")
PATH_AT = {**dict.fromkeys(_PATH_FIRST, 0), **dict.fromkeys(_PATH_SECOND, 1)}
"""Which argument is the address of a path."""
SETS_LOCK = frozenset((7, 38))
"""F_SETLKW and F_OFD_SETLKW: what `fcntl` is asked for where it waits for a lock."""
