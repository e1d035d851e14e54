"""Messages between processes of one user: JSON lists that begin with a word, one per packet, with descriptors.

Both sides ask the kernel who is at the other end before they read anything. Nothing from the socket is executed or unpickled.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MOST_BYTES = 1 << 17
MOST_DESCRIPTORS = 250
"""The kernel passes at most 253 at a time."""


class NotUnderstood(ValueError):  # noqa: N818 - as much an event as an error
    """What came is no message of ours."""


def connect(path: str) -> tuple[socket.socket, int]:
    """Connect to a socket of this user's; also the number of the process behind it.

    Raises:
        OSError: when nobody listens there, or another user does.
    """
    end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        end.setblocking(False)  # with a full queue it must not wait
        end.connect(path)
        return end, peer_of(end)
    except OSError:
        end.close()
        raise


def peer_of(end: socket.socket) -> int:
    """The process at the other end.

    Raises:
        PermissionError: when it is another user's, or of a place where processes have other numbers.
    """
    pid, user, _ = struct.unpack("3i", end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.geteuid() or pid <= 0:
        raise PermissionError(errno.EPERM, "another user is at the other end")
    return int(pid)


def send(end: socket.socket, word: str, *values: Any, descriptors: Sequence[int] = ()) -> None:
    """Send a message.

    Raises:
        OSError: when it is too long, or nobody reads.
    """
    data = json.dumps([word, *values]).encode()
    if len(data) > MOST_BYTES:
        raise OSError(errno.EMSGSIZE, "the message is too long")
    socket.send_fds(end, [data], descriptors, socket.MSG_NOSIGNAL)


def receive(end: socket.socket) -> tuple[str, list[Any], list[int]]:
    """The next message: its word, its values, its descriptors (close-on-exec). An empty word: the other side is gone.

    Raises:
        NotUnderstood: for anything else; its descriptors are closed.
        OSError: when there is nothing to read.
    """
    data, descriptors, flags, _ = socket.recv_fds(end, MOST_BYTES, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise NotUnderstood("it is too long")
        if not data:
            return "", [], descriptors
        told = json.loads(data)
        if not (isinstance(told, list) and told and isinstance(told[0], str)):
            raise NotUnderstood("it is no list that begins with a word")
        return told[0], told[1:], descriptors
    except (ValueError, RecursionError) as error:
        for descriptor in descriptors:
            os.close(descriptor)
        raise NotUnderstood(str(error)) from None
