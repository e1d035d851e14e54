"""The TCP sockets of this process, found in /proc/self/fd: those of libraries too, which give nobody their numbers."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Address = tuple[str, int]


@dataclass(frozen=True)
class OwnSocket:
    """One of them, as it was when it was looked for."""

    descriptor: int
    here: Address
    there: Address | None
    """The other end; None for one that listens."""


def own_sockets() -> list[OwnSocket]:
    """All that listen or are connected."""
    found: list[OwnSocket] = []
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if path.readlink().name.startswith("socket:"):
                found.extend(_described(int(path.name)))
    return found


def _described(descriptor: int) -> Iterator[OwnSocket]:
    with borrowed(descriptor) as duplicate:
        if duplicate.family not in (socket.AF_INET, socket.AF_INET6) or duplicate.type != socket.SOCK_STREAM:
            return
        here = duplicate.getsockname()[:2]
        if duplicate.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            yield OwnSocket(descriptor, here, None)
            return
        yield OwnSocket(descriptor, here, duplicate.getpeername()[:2])


@contextlib.contextmanager
def borrowed(descriptor: int) -> Iterator[socket.socket]:
    """The socket as an object of Python's, through a descriptor of its own. Raises OSError when it is gone."""
    # A duplicate: closing the object must not close the library's own descriptor.
    duplicate = socket.socket(fileno=os.dup(descriptor))
    try:
        yield duplicate
    finally:
        duplicate.close()


def cut(descriptor: int) -> None:
    """End the connection for both sides; whoever waits for it, in any thread and on the other side, wakes up."""
    with contextlib.suppress(OSError), borrowed(descriptor) as one:
        one.shutdown(socket.SHUT_RDWR)


def unread(descriptor: int) -> int:
    """How many bytes have come that nobody has read."""
    return _waiting(descriptor, termios.FIONREAD)


def unheard(descriptor: int) -> int:
    """How many bytes were sent that the other machine has not confirmed."""
    return _waiting(descriptor, termios.TIOCOUTQ)


def _waiting(descriptor: int, which: int) -> int:
    try:
        count: int = struct.unpack("i", fcntl.ioctl(descriptor, which, b"\0" * 4))[0]
    except OSError:
        return 0
    return count
