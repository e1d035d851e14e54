"""Sockets that do not block: bytes (`Pipe`), or messages in frames (`Wire`), as between two launchers after their hello."""

from __future__ import annotations

import errno
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from lockstep.launcher.nodes.session import Opener, Sealer
from lockstep.protocol.message import packed, unpacked

PIECE_BYTES, FAIR_PIECES = 1 << 17, 8
"""Read at once, and so often before others have their turn."""
MOST_LEFT_BYTES = 256 << 20
"""What may wait for the other side to read it: a launcher that is stopped reads nothing."""
Message = tuple[dict[str, Any], bytes]


class WireEnded(Exception):  # noqa: N818 - a state of the world
    """The other side is gone, or sent what is no frame; the text says which."""


class Pipe:
    """A socket whose bytes are sent when the kernel takes them, and read when they have come.

    Args:
        end: connected; taken over.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._left: deque[memoryview] = deque()
        self.left_bytes = 0
        """What this side wants to send and the kernel has not taken."""

    def fileno(self) -> int:
        """For a selector."""
        return self._end.fileno()

    @property
    def mask(self) -> int:
        """What is to be waited for, as epoll names it."""
        return select.EPOLLIN | (select.EPOLLOUT if self.left_bytes else 0)

    def write(self, data: bytes) -> None:
        """Send, now or when the kernel takes more (`flush`). Raises WireEnded."""
        if self.left_bytes + len(data) > MOST_LEFT_BYTES:
            raise WireEnded("it reads nothing any more")
        self._left.append(memoryview(data))
        self.left_bytes += len(data)
        self.flush()

    def flush(self) -> None:
        """Send what is left, as far as the kernel takes it. Raises WireEnded."""
        try:
            while self._left:
                sent = self._end.send(self._left[0])
                self.left_bytes -= sent
                if sent < len(self._left[0]):
                    self._left[0] = self._left[0][sent:]
                    return
                self._left.popleft()
        except BlockingIOError:
            return
        except OSError as error:
            raise WireEnded(_reason(error)) from None

    def read(self) -> bytes:
        """What has come; empty while that is nothing. Raises WireEnded."""
        try:
            data = self._end.recv(PIECE_BYTES)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise WireEnded(_reason(error)) from None
        if not data:
            raise WireEnded("it has ended")
        return data

    def half_close(self) -> None:
        """Say that nothing more comes from here; the other side is still read."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close it. Closing twice is fine."""
        with suppress(OSError):
            self._end.close()


class Wire(Pipe):
    """A connection that carries messages.

    Args:
        end: connected, and past its hello; taken over.
        seal: makes the next frame.
        open: gives the contents of the frames that are whole; raises ValueError for what is none.
    """

    def __init__(
        self, end: socket.socket, seal: Callable[[bytes], bytes], open: Callable[[bytes], Iterable[bytes]]
    ) -> None:
        super().__init__(end)
        self._seal, self._open = seal, open
        self.heard_at = time.monotonic()
        """When something came last."""

    @classmethod
    def between_nodes(cls, end: socket.socket, key_out: bytes, key_in: bytes) -> Wire:
        """One with the keys of a hello: for what this side sends, and for what the other one does."""
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(end, Sealer(key_out).seal, Opener(key_in).open)

    def send(self, told: dict[str, Any], blob: bytes = b"") -> None:
        """Send a message. Raises WireEnded, or ValueError for one too long."""
        self.send_packed(packed(told, blob))

    def send_packed(self, content: bytes) -> None:
        """As `send`, for what goes to several. Raises likewise."""
        self.write(self._seal(content))

    def receive(self) -> list[Message]:
        """The messages that have come. Raises WireEnded, once all that came before the end was given."""
        found: list[Message] = []
        for _ in range(FAIR_PIECES):
            try:
                data = self.read()
            except WireEnded:
                if found:
                    break
                raise
            if data:
                self.heard_at = time.monotonic()
            try:
                found += [unpacked(content) for content in self._open(data)]
            except ValueError as error:
                raise WireEnded(f"it sent {error}") from None
            if len(data) < PIECE_BYTES:
                break
        return found

    @property
    def is_acknowledged(self) -> bool:
        """Whether the other machine's kernel answers what is sent: then it is there, whatever its launcher does."""
        try:
            info = self._end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8)
        except OSError:
            return False
        _, _, retransmits, probes = info[:4]  # of struct tcp_info: in vain since something was acknowledged
        return retransmits == 0 and probes <= 1


def _reason(error: OSError) -> str:
    if error.errno in (errno.ECONNRESET, errno.EPIPE):
        return "it has ended"
    return os.strerror(error.errno).lower() if error.errno else str(error)
