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
    with borrowed(descriptor) as looked_at:
        if looked_at.family not in (socket.AF_INET, socket.AF_INET6) or looked_at.type != socket.SOCK_STREAM:
            return
        here = looked_at.getsockname()[:2]
        if looked_at.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            yield OwnSocket(descriptor, here, None)
            return
        yield OwnSocket(descriptor, here, looked_at.getpeername()[:2])


@contextlib.contextmanager
def borrowed(descriptor: int) -> Iterator[socket.socket]:
    """The socket as an object of Python's, through a descriptor of its own. Raises OSError when it is gone."""
    looked_at = socket.socket(fileno=os.dup(descriptor))
    try:
        yield looked_at
    finally:
        looked_at.close()


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
