"""The tunnel: a port on 127.0.0.1 of each node whose connections come out at the store, behind the gate of node 0.

The processes of a node use it as they would use a store on their own machine, without key or TLS; node 0 has one too, so that
all nodes are the same. Connections of other users of the machine are closed.

One connection, the pulse, is always open: a byte each half second there and back. When its other end dies, the kernel says
so at once: `GateLost`. A link that is cut says nothing: `heard_at` stands still. The tunnel ends no connection for that, and one that is
being opened meanwhile is tried again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lockstep.errors import LockstepError, WorldError
from lockstep.nodes.accepting import accept_from
from lockstep.nodes.address import Place
from lockstep.nodes.callers import is_own_process
from lockstep.nodes.dial import NotYet, dial, patient
from lockstep.nodes.greeting import LONGEST_LINE, VERSION, Purpose
from lockstep.nodes.identity import identity
from lockstep.nodes.interfaces import listen
from lockstep.nodes.key import Key
from lockstep.nodes.loop_thread import LoopThread
from lockstep.nodes.pair import Pair, close_now

BEAT_S = 0.5
OPENING_PATIENCE_S = 30.0
"""How long a connection of this node waits to be opened while the link is cut."""
LONGEST_HELLO = LONGEST_LINE - 64
"""Leaves room for the purpose."""
_BEAT = b"\n"


@dataclass(frozen=True)
class GateLost:
    """The gate is gone: its process is dead, it was closed, or it has given this node up. Told once."""

    reason: str


class Tunnel:
    """This node's way to the store. `start` and `close` it; the rest may be read from any thread."""

    def __init__(
        self,
        place: Place,
        key: Key,
        hello: dict[str, Any],
        on_event: Callable[[GateLost], None],
    ) -> None:
        """Prepare.

        Args:
            place: where the gate is.
            key: the run's.
            hello: what the gate is told, at most `LONGEST_HELLO` bytes as JSON; `hello["node"]` is what it counts this node's connections by.
            on_event: called from the tunnel's thread; it must return at once.
        """
        self._place, self._on_event = place, on_event
        self._hello = {**hello, "lockstep": VERSION}
        if len(json.dumps(self._hello)) > LONGEST_HELLO:
            raise ValueError(f"what the gate is told must have at most {LONGEST_HELLO} bytes as JSON")
        self._context = identity(key).context(is_gate=False)
        self._thread = LoopThread("lockstep-tunnel")
        self._listener: socket.socket | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._pairs: set[Pair] = set()
        self._pulse: ssl.SSLSocket | None = None
        self.heard_at = 0.0
        """When something came from the gate last, by `time.monotonic()`; twice a second while the link works."""
        self.num_refused = 0
        """How many connections of other users were closed."""

    def start(self, patience_s: float = 0.0) -> Tunnel:
        """Reach the gate and open the port. Nothing is left open when that fails.

        Args:
            patience_s: how long to try again while nobody listens there.

        Raises:
            NotYet, UsageError, WorldError: as `lockstep.nodes.dial.dial`.
        """
        try:
            self._thread.start()
            self._thread.run(self._begin(patience_s))
        except BaseException:
            self.close()
            raise
        return self

    @property
    def port(self) -> int:
        """The port on 127.0.0.1."""
        assert self._listener is not None, "it has started"
        return int(self._listener.getsockname()[1])

    def close(self) -> None:
        """Close the port and all connections, without an event, and end the thread. Closing twice is fine."""
        self._on_event = lambda _event: None
        if self._thread.is_running:
            self._thread.run(self._end())
        self._thread.close()
        if self._listener is not None:
            close_now(self._listener)

    async def _begin(self, patience_s: float) -> None:
        hello = {**self._hello, "purpose": Purpose.PULSE}
        self._pulse = await patient(lambda: dial(self._place, self._context, hello), patience_s, NotYet)
        self.heard_at = time.monotonic()
        self._listener = listen(Place("127.0.0.1", 0))
        self._listener.setblocking(False)
        self._thread.loop.add_reader(self._pulse, self._hear)
        accept_from(self._listener, self._take, self._thread.loop)
        self._beat()

    async def _end(self) -> None:
        self._lose("closed")
        if self._listener is not None:
            self._thread.loop.remove_reader(self._listener)

    def _lose(self, reason: str) -> None:
        """Give up the gate, and close what goes through it."""
        if self._pulse is not None:
            self._thread.loop.remove_reader(self._pulse)
            close_now(self._pulse)
            self._pulse = None
            self._on_event(GateLost(reason))
        for task in self._opening:
            task.cancel()
        for pair in list(self._pairs):
            pair.close()

    def _beat(self) -> None:
        """Say that this node is alive, and plan to say so again."""
        if self._pulse is not None:
            with contextlib.suppress(
                ssl.SSLWantWriteError, ssl.SSLWantReadError, OSError
            ):  # reading tells what is wrong
                self._pulse.send(_BEAT)
            self._thread.loop.call_later(BEAT_S, self._beat)

    def _hear(self) -> None:
        assert self._pulse is not None
        try:
            came, reason = self._pulse.recv(1024), "it has ended"
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return
        except OSError as error:
            came, reason = b"", error.strerror or str(error)
        if came:
            self._heard()
        else:
            self._lose(reason)

    def _heard(self) -> None:
        self.heard_at = time.monotonic()

    def _take(self, connection: socket.socket) -> None:
        """Begin to lead a connection to the gate, if it is of this user."""
        if self._pulse is None or not self._is_own(connection):
            close_now(connection)
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._thread.loop.create_task(self._open(connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def _is_own(self, connection: socket.socket) -> bool:
        try:
            is_own = is_own_process(connection)
        except OSError:  # it has ended
            is_own = False
        self.num_refused += not is_own
        return is_own

    async def _open(self, connection: socket.socket) -> None:
        """Lead one connection to the gate, or close it."""
        hello = {**self._hello, "purpose": Purpose.STORE}
        try:
            tls = await patient(lambda: dial(self._place, self._context, hello), OPENING_PATIENCE_S, WorldError)
        except (LockstepError, asyncio.CancelledError):
            close_now(connection)
        else:
            pair = Pair(connection, tls, self._heard, lambda: self._pairs.discard(pair))
            self._pairs.add(pair)
