"""Sockets that do not block, and the loop that serves them (`Loop`): bytes (`Pipe`), or messages in frames (`Wire`), as between two launchers."""

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

from samebits.launcher.nodes.session import Opener, Sealer
from samebits.machine.clocks import readable, ticking
from samebits.protocol.message import packed, unpacked

PIECE_BYTES, FAIR_PIECES = 1 << 17, 8
"""Read at once, and so often before others have their turn."""
MOST_LEFT_BYTES = 256 << 20
"""What may wait for the other side to read it: a launcher that is stopped reads nothing."""
Message = tuple[dict[str, Any], bytes]


class WireEnded(Exception):  # noqa: N818 - a state of the world
    """The other side is gone, or sent what is no frame; the text says which."""


class Loop:
    """Of one thread.

    Args:
        tick_s: how often `ticked` is called.
        ticked: the timer's act, after those of all descriptors that are ready too.
        awake: the act after `wake`.
    """

    def __init__(self, tick_s: float, ticked: Callable[[], None], awake: Callable[[], None] = lambda: None) -> None:
        self._epoll = select.epoll()
        self._acts: dict[int, Callable[[int], None]] = {}
        self._ticked, self._awake = ticked, awake
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._timer = ticking(tick_s)
        self.watch(self._wake, self._on_wake)
        self.watch(self._timer, self._on_timer)

    def fileno(self) -> int:
        """For a selector: readable when `turn` has something to do."""
        return self._epoll.fileno()

    def turn(self) -> None:
        """Do what is to be done now, without waiting."""
        # The timer comes last: what came in this turn counts before anybody is called silent.
        events = self._epoll.poll(0)
        for descriptor, mask in sorted(events, key=lambda event: event[0] == self._timer):
            if (act := self._acts.get(descriptor)) is not None:
                act(mask)

    def wait(self, limit_s: float) -> None:
        """One turn, as soon as there is something to do, or without after so long."""
        readable([self], limit_s)
        self.turn()

    def watch(self, source: Any, act: Callable[[int], None], mask: int = select.EPOLLIN) -> None:
        """Call `act` in `turn` when a descriptor is ready; watching it again changes for what."""
        descriptor = source if isinstance(source, int) else source.fileno()
        if descriptor in self._acts:
            self._epoll.modify(descriptor, mask)
        else:
            self._epoll.register(descriptor, mask)
        self._acts[descriptor] = act

    def forget(self, source: Any) -> None:
        """Watch it no more; call it before it is closed."""
        descriptor = source if isinstance(source, int) else source.fileno()
        if self._acts.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def wake(self) -> None:
        """Let there be a next turn at once, which calls `awake`. Any thread may call it."""
        with suppress(OSError, ValueError):
            os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Close what it made itself."""
        # A thread may still call `wake`, which must not write to whatever gets this number next.
        wake, self._wake = self._wake, -1
        for descriptor in (self._timer, wake):
            self.forget(descriptor)
            os.close(descriptor)
        self._epoll.close()

    def _on_wake(self, _mask: int) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        self._awake()

    def _on_timer(self, _mask: int) -> None:
        with suppress(BlockingIOError):
            os.read(self._timer, 8)
        self._ticked()


class Pipe:
    """A socket whose bytes are sent when the kernel takes them, and read when they have come; `attach` lets a loop do both.

    Args:
        end: connected; taken over.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end, self._why = end, ""
        self._loop: Loop | None = None
        self._left: deque[memoryview] = deque()
        self.left_bytes = 0
        """What this side wants to send and the kernel has not taken."""

    def fileno(self) -> int:
        """For a selector."""
        return self._end.fileno()

    def attach(self, loop: Loop, take: Callable[[Any], None], ended: Callable[[str], None]) -> None:
        """Let a loop send what is left and read what comes, until `close`.

        Args:
            loop: of this thread.
            take: gets what `receive` returns, when that is something.
            ended: gets why the other side is gone; called at most once.
        """
        self._loop, self._take, self._ended = loop, take, ended
        self._watch()

    def _watch(self) -> None:
        if self._loop is not None:
            self._loop.watch(self, self._ready, select.EPOLLIN | (select.EPOLLOUT if self.left_bytes else 0))

    def _ready(self, mask: int) -> None:
        if mask & select.EPOLLOUT:
            try:
                self.flush()
            except WireEnded as ended:
                self.give_up(str(ended))
            self._watch()
        try:
            found = self.receive() if mask & ~select.EPOLLOUT else None
        except WireEnded as ended:
            self._ended(self._why or str(ended))
            return
        if found:
            self._take(found)

    def give_up(self, why: str) -> None:
        """Sending has failed: let the loop take what has come, which may say the reason, and only then that the other side is gone."""
        self._why = why
        with suppress(OSError):
            self._end.shutdown(socket.SHUT_RDWR)

    def write(self, data: bytes) -> None:
        """Send, now or when the kernel takes more (`flush`). Raises WireEnded."""
        if self.left_bytes + len(data) > MOST_LEFT_BYTES:
            raise WireEnded("it reads nothing any more")
        self._left.append(memoryview(data))
        was_empty = not self.left_bytes
        self.left_bytes += len(data)
        self.flush()
        if was_empty and self.left_bytes:
            self._watch()

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

    def receive(self) -> Any:
        """What has come, bytes here and a list of messages in `Wire`; empty while that is nothing. Raises WireEnded."""
        return self._read()

    def _read(self) -> bytes:
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
        """Close it; its loop forgets it. Closing twice is fine."""
        if self._loop is not None:
            self._loop.forget(self)
            self._loop = None
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
        self.received_at = time.monotonic()
        """When something came last."""
        self.is_silent = False
        """Whether that was reported to be long ago."""

    @classmethod
    def between_nodes(cls, end: socket.socket, key_out: bytes, key_in: bytes) -> Wire:
        """One with the keys of a hello: for what this side sends, and for what the other one does."""
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(end, Sealer(key_out).seal, Opener(key_in).open)

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        """Send a message. Raises WireEnded, or ValueError for one too long."""
        self.send_packed(packed(message, blob))

    def send_packed(self, content: bytes) -> None:
        """As `send`, for what goes to several. Raises likewise."""
        self.write(self._seal(content))

    def receive(self) -> list[Message]:
        """The messages that have come. Raises WireEnded, once all that came before the end was given."""
        found: list[Message] = []
        for _ in range(FAIR_PIECES):
            try:
                data = self._read()
            except WireEnded:
                if found:
                    break
                raise
            if data:
                self.received_at = time.monotonic()
            try:
                found += [unpacked(content) for content in self._open(data)]
            except ValueError as error:
                raise WireEnded(f"it sent {error}") from None
            # The kernel had no more; otherwise others get their turn after `FAIR_PIECES`.
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
        # [Note: a launcher that is stopped is not a machine that is gone]
        # Its kernel continues to acknowledge. These fields of struct tcp_info count attempts since it last did.
        _, _, retransmits, probes = info[:4]
        return retransmits == 0 and probes <= 1


def _reason(error: OSError) -> str:
    if error.errno in (errno.ECONNRESET, errno.EPIPE):
        return "it has ended"
    return os.strerror(error.errno).lower() if error.errno else str(error)
