"""Connections to a port of node 0's loopback from the loopback of every node: their bytes travel as messages of the star.

For whoever speaks torch's own protocol: a script that makes a `TCPStore` at MASTER_PORT, and torchrun. Connections of other users
of the machine are closed (`door`).
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from samebits.launcher.nodes.door import is_own_process
from samebits.launcher.nodes.star import HostStar, Star
from samebits.launcher.nodes.wire import Pipe, WireEnded

FORTH, BACK = "stream", "stream back"
# Of all entrances of this node together, so what comes late for a stream of a closed one is not taken for another's.
_numbers = itertools.count()
Connect = Callable[[str], socket.socket | None]
Send = Callable[[dict[str, Any], bytes], None]


class _Streams:
    """The local ends of streams, by whatever names them."""

    def __init__(self, star: Star) -> None:
        self._star = star
        self._pipes: dict[object, tuple[Pipe, Send]] = {}

    def add(self, name: object, end: socket.socket, send: Send) -> None:
        """Hand on between a socket and the star."""
        pipe = Pipe(end)
        self._pipes[name] = pipe, send
        pipe.attach(self._star.loop, lambda data: send({}, data), lambda _why: self._end(name))

    def take(self, name: object, message: dict[str, Any], data: bytes) -> None:
        """Take what came through the star for one of them; it may have ended."""
        if name not in self._pipes:
            return
        if message.get("ends"):
            self._pipes.pop(name)[0].close()
            return
        with suppress(WireEnded):  # reading the pipe raises it too, and ends the stream
            self._pipes[name][0].write(data)

    def close(self) -> None:
        """End all, on both sides."""
        for name in list(self._pipes):
            self._end(name)

    def _end(self, name: object) -> None:
        pipe, send = self._pipes.pop(name)
        pipe.close()
        send({"ends": True}, b"")


class Entrance:
    """A listening socket on 127.0.0.1 of any node whose connections come out at node 0.

    Args:
        star: this node's.
        listener: listens; used, not taken over.
        to: which port of node 0's is meant, as its `Exit` knows it.
    """

    def __init__(self, star: Star, listener: socket.socket, to: str) -> None:
        self._star, self._listener, self._to = star, listener, to
        self._streams = _Streams(star)
        self.num_refused = 0
        """How many connections of other users were closed."""
        listener.setblocking(False)
        star.handlers[BACK] = lambda _node, message, data: self._streams.take(message["of"], message, data)
        star.loop.watch(listener, self._accept)

    def close(self) -> None:
        """End all connections, and accept none."""
        self._star.loop.forget(self._listener)
        self._streams.close()

    def _accept(self, _mask: int) -> None:
        # Who connected may be gone again.
        with suppress(OSError):
            end, _ = self._listener.accept()
            if not is_own_process(end):
                self.num_refused += 1
                end.close()
                return
            of = {"kind": FORTH, "to": self._to, "of": next(_numbers)}
            self._star.send({**of, "begins": True})
            self._streams.add(of["of"], end, lambda message, data: self._star.send({**of, **message}, data))


class Exit:
    """Where the streams of all nodes come out, on node 0.

    Args:
        star: node 0's.
        connect: makes the connection that a stream continues, by what its `Entrance` calls the port; None where there is none.
    """

    def __init__(self, star: HostStar, connect: Connect = lambda _to: None) -> None:
        self._star, self.connect = star, connect
        self._streams = _Streams(star)
        star.handlers[FORTH] = self._take

    def close(self) -> None:
        """End all streams, and let none begin."""
        self.connect = lambda _to: None
        self._streams.close()

    def _take(self, node: str, message: dict[str, Any], data: bytes) -> None:
        name = node, message["of"]

        def back(more: dict[str, Any], data: bytes) -> None:
            self._star.send_to(node, {"kind": BACK, "of": message["of"], **more}, data)

        if not message.get("begins"):
            self._streams.take(name, message, data)
        elif (end := self.connect(str(message["to"]))) is not None:
            self._streams.add(name, end, back)
        else:
            back({"ends": True}, b"")
