"""A connection between two launchers after its hello: messages in frames, over a socket that does not block."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections import deque
from contextlib import suppress
from typing import Any

from lockstep.handover.message import packed, unpacked
from lockstep.nodes.frames import Opener, Sealer

PIECE_BYTES, FAIR_PIECES = 1 << 17, 8
"""Read at once, and so often before others have their turn."""
MOST_LEFT_BYTES = 256 << 20
"""What may wait for the other side to read it: a launcher that is stopped reads nothing."""
Message = tuple[dict[str, Any], bytes]


class WireEnded(Exception):  # noqa: N818 - a state of the world
    """The other side is gone, or sent what is no frame; the text says which."""


class Wire:
    """One connection.

    Args:
        end: connected, and past its hello; taken over.
        key_out: for what this side sends.
        key_in: for what the other side sends.
    """

    def __init__(self, end: socket.socket, key_out: bytes, key_in: bytes) -> None:
        end.setblocking(False)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._end, self._sealer, self._opener = end, Sealer(key_out), Opener(key_in)
        self._left: deque[memoryview] = deque()
        self.left_bytes = 0
        """What this side wants to send and the kernel has not taken."""
        self.heard_at = time.monotonic()
        """When something came last."""

    def fileno(self) -> int:
        """For a selector."""
        return self._end.fileno()

    def send(self, told: dict[str, Any], blob: bytes = b"") -> None:
        """Send a message, now or when the kernel takes more (`flush`). Raises WireEnded, or ValueError for one too long."""
        self.send_packed(packed(told, blob))

    def send_packed(self, content: bytes) -> None:
        """As `send`, for what goes to several. Raises likewise."""
        frame = memoryview(self._sealer.seal(content))
        if self.left_bytes + len(frame) > MOST_LEFT_BYTES:
            raise WireEnded("it reads nothing any more")
        self._left.append(frame)
        self.left_bytes += len(frame)
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

    def receive(self) -> list[Message]:
        """The messages that have come. Raises WireEnded, after all that came before the end was given."""
        found: list[Message] = []
        for _ in range(FAIR_PIECES):
            try:
                data = self._end.recv(PIECE_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if found:
                    break
                raise WireEnded(_reason(error)) from None
            if not data:
                if found:
                    break
                raise WireEnded("it has ended")
            self.heard_at = time.monotonic()
            try:
                found += [unpacked(content) for content in self._opener.open(data)]
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

    def half_close(self) -> None:
        """Say that nothing more comes from here; the other side is still read."""
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close it. Closing twice is fine."""
        with suppress(OSError):
            self._end.close()


def _reason(error: OSError) -> str:
    if error.errno in (errno.ECONNRESET, errno.EPIPE):
        return "it has ended"
    return os.strerror(error.errno).lower() if error.errno else str(error)
