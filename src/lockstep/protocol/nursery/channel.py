"""The connection between the launcher and the nursery: one message per packet, with file descriptors.

A socket pair of type SOCK_SEQPACKET keeps the packets apart and reports the other side's end at once, however it died.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence

from lockstep.protocol.nursery.messages import Message, decode, encode

MAX_BYTES = 1 << 16
MAX_DESCRIPTORS = 8
FULL_S = 5
"""How many seconds the launcher waits for room in the socket of a nursery that does not read."""


class ChannelClosed(ConnectionError):  # noqa: N818 - an event as much as an error
    """The other side is gone."""


class Channel:
    """One end of the pair."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def fileno(self) -> int:
        """For a selector."""
        return self._end.fileno()

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send one message; the descriptors are duplicated, the sender's stay open.

        Raises:
            ChannelClosed: when the other side is gone, or has not read for `FULL_S`.
        """
        try:
            socket.send_fds(self._end, [encode(message)], descriptors)
        except (BrokenPipeError, ConnectionResetError, BlockingIOError) as error:
            raise ChannelClosed(str(error)) from error

    def receive(self) -> tuple[Message, list[int]]:
        """Return the next message and its descriptors (close-on-exec).

        Raises:
            ChannelClosed: when the other side is gone.
        """
        try:
            data, descriptors, _, _ = socket.recv_fds(self._end, MAX_BYTES, MAX_DESCRIPTORS)
        except ConnectionResetError as error:
            raise ChannelClosed(str(error)) from error
        if not data:
            raise ChannelClosed("end of stream")
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        return decode(data), descriptors

    def close(self) -> None:
        """Close this end; the other side sees it at once."""
        self._end.close()


def channel_pair() -> tuple[Channel, socket.socket]:
    """Make the launcher's end, and the nursery's end as a socket to hand over."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", FULL_S, 0))
    return Channel(ours), theirs
