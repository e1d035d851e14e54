"""Two sockets whose bytes are handed on in both directions until one of them ends; or one that hears its own words again.

A request to the store and its answer pass four of these hands, so each is as short as it can be: what was read is sent
at once, and the event loop is asked only when a socket has nothing to give or cannot take more. What one side has not taken
yet is at most one piece; until then nothing is read from the other side, which then waits as over a bare connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable

PIECE_BYTES = 1 << 16
FAIR_PIECES = 16
"""After this many, others have their turn."""
_NOT_NOW = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Pair:
    """A pair of sockets that do not block. Made and used in the thread of the loop alone."""

    def __init__(
        self, plain: socket.socket | None, tls: ssl.SSLSocket, heard: Callable[[], None], ended: Callable[[], None]
    ) -> None:
        """Begin to hand on.

        Args:
            plain: the end on this machine; None when what comes shall go back.
            tls: the end on the other one.
            heard: called when bytes have come through TLS.
            ended: called once, before both ends are closed.
        """
        self._loop = asyncio.get_running_loop()
        self._ends = (tls,) if plain is None else (plain, tls)
        self._ended = ended
        self.is_open = True
        incoming = _Way(self, tls, plain or tls, heard)
        for way in [incoming] if plain is None else [incoming, _Way(self, plain, tls)]:
            self._loop.add_reader(way.source, way.hand_on)
            self._loop.call_soon(way.again)  # what TLS has read already is announced by nobody

    def close(self) -> None:
        """Close both ends; the other machine is told at once."""
        if self.is_open:
            self.is_open = False
            for end in self._ends:
                self._loop.remove_reader(end)
                self._loop.remove_writer(end)
            self._ended()
            for end in self._ends:
                close_now(end)


class _Way:
    """One direction of a pair."""

    def __init__(
        self, pair: Pair, source: socket.socket, sink: socket.socket, heard: Callable[[], None] | None = None
    ) -> None:
        self.source, self._sink, self._pair, self._heard = source, sink, pair, heard
        self._loop = asyncio.get_running_loop()
        self._left = memoryview(b"")
        self._waits_for_sink = False

    def hand_on(self) -> None:
        """Read and send until one of the two has to be waited for."""
        try:
            for _ in range(FAIR_PIECES):
                if self._left:
                    self._send()
                elif not self._read():
                    return self._pair.close()
            self._loop.call_soon(self.again)
        except _NOT_NOW:
            self._wait()
        except OSError:
            self._pair.close()

    def _read(self) -> bool:
        data = self.source.recv(PIECE_BYTES)
        if data and self._heard is not None:
            self._heard()
        self._left = memoryview(data)
        if data:
            self._send()
        return bool(data)

    def _send(self) -> None:
        self._left = self._left[self._sink.send(self._left) :]

    def again(self) -> None:
        """Go on, if nothing has ended since that was planned."""
        if self._pair.is_open:
            self.hand_on()

    def _wait(self) -> None:
        """Be called when the source has something, or the sink takes more, whichever is missing."""
        if bool(self._left) == self._waits_for_sink:
            return
        self._waits_for_sink = not self._waits_for_sink
        if self._waits_for_sink:
            self._loop.remove_reader(self.source)
            self._loop.add_writer(self._sink, self.hand_on)
        else:
            self._loop.remove_writer(self._sink)
            self._loop.add_reader(self.source, self.hand_on)


def close_now(end: socket.socket) -> None:
    """Close a socket without waiting for anybody."""
    with contextlib.suppress(OSError):
        end.close()
