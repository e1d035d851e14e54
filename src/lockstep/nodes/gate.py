"""The gate: the one listening socket of a run of several nodes, on node 0. Who has the key comes through to the store.

The store has no password, so it listens on 127.0.0.1 only, and the gate in front of it, on one named address. A connection must
show the run's certificate and say whose it is within seconds; then its bytes are handed on. Everybody else is closed, and costs
one handshake at most: at most `MOST_OPENING` are under way, the oldest gives way, and none has a thread.

The gate counts the connections of each node. The kernel closes those of a process that dies, so the last one tells that a node is
gone; a node whose link is cut closes nothing, and is silent: `Presence.heard_at` stands still. The gate ends no connection for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lockstep.errors import WorldError
from lockstep.nodes.accepting import accept_from
from lockstep.nodes.door import Door
from lockstep.nodes.greeting import KEPT_OUT, LET_IN, VERSION, Purpose, line, read_line, ready, secured
from lockstep.nodes.identity import identity
from lockstep.nodes.key import Key
from lockstep.nodes.loop_thread import LoopThread
from lockstep.nodes.munge import ASKS_FOR_SEAL
from lockstep.nodes.pair import Pair, close_now

MOST_OPENING, OPENING_S = 64, 5.0
"""How many connections may be opening at once, and for how long."""
_TLS_FIRST = b"\x16"


@dataclass(frozen=True)
class NodeCame:
    """A node's first connection came through."""

    node: str
    hello: dict[str, Any]
    """What its tunnel says about it."""


@dataclass(frozen=True)
class NodeGone:
    """A node's last connection has ended: its process is dead, or closed its tunnel."""

    node: str


@dataclass(frozen=True)
class NodeWithdrew:
    """A node that could not start said why."""

    hello: dict[str, Any]


@dataclass(frozen=True)
class StrangerCame:
    """Somebody who speaks TLS has another key, or none."""

    address: str


GateEvent = NodeCame | NodeGone | NodeWithdrew | StrangerCame


@dataclass
class Presence:
    """What the gate knows of a node that is there."""

    node: str
    hello: dict[str, Any]
    heard_at: float
    """When something came from it last, by `time.monotonic()`; an idle node sends something every half second."""
    connections: dict[int, Callable[[], None]] = field(default_factory=dict, repr=False)
    """How to close each of its connections."""

    def heard(self) -> None:
        """Something has come."""
        self.heard_at = time.monotonic()


class Gate:
    """Lets in who has the key. `start` and `close` it; everything else may be called from any thread."""

    def __init__(
        self,
        listener: socket.socket,
        target_port: int,
        key: Key,
        on_event: Callable[[GateEvent], None],
        *,
        seal: Callable[[], bytes] | None = None,
        door: Door | None = None,
        refusal: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare.

        Args:
            listener: listens on one address (`lockstep.nodes.interfaces.listen`); the gate takes it over.
            target_port: where the store listens on 127.0.0.1.
            key: the run's.
            on_event: called from the gate's thread, in the order in which it happened; it must return at once.
            seal: makes what is given to whoever asks for the sealed key; nothing is given without it.
            door: the store's, if it is locked; the gate takes it over.
            refusal: lets in nobody, and tells this to whoever has the key.
        """
        self._listener, self._targets, self._on_event = listener, {"": target_port}, on_event
        self._seal, self._door = seal, door
        self._kept_out = KEPT_OUT if refusal is None else line({"ok": False, **refusal})
        self._is_shut = refusal is not None
        self._context = identity(key).context(is_gate=True)
        self._thread = LoopThread("lockstep-gate")
        self._opening: dict[asyncio.Task[None], None] = {}
        self._sealing = asyncio.Lock()
        self._nodes: dict[str, Presence] = {}
        self._barred: set[str] = set()
        self._numbers = itertools.count()
        self.num_refused = 0
        """How many connections did not come through: no key, too slow, barred."""

    def lead_to(self, store: str, port: int) -> None:
        """Lead connections whose hello names `store` to another one, at this port of 127.0.0.1."""
        self._targets[store] = port

    def start(self) -> Gate:
        """Begin to accept."""
        self._listener.setblocking(False)
        self._thread.start()
        loop = self._thread.loop
        loop.call_soon_threadsafe(accept_from, self._listener, self._take, loop)
        return self

    def close(self) -> None:
        """Close the listening socket and all connections, without events, and end the thread. Closing twice is fine."""
        self._on_event = lambda _event: None
        if self._thread.is_running:
            self._thread.run(self._end())
        self._thread.close()
        close_now(self._listener)
        if self._door is not None:
            self._door.close()

    async def _end(self) -> None:
        self._thread.loop.remove_reader(self._listener)
        for node in self.nodes():
            self._bar(node)

    def nodes(self) -> dict[str, Presence]:
        """The nodes that are there."""
        return dict(self._nodes)

    def bar(self, node: str) -> None:
        """Close the connections of a node that is given up, and let it in no more; its link may be cut, and come back."""
        self._thread.loop.call_soon_threadsafe(self._bar, node)

    def _bar(self, node: str) -> None:
        self._barred.add(node)
        if presence := self._nodes.get(node):
            for end in list(presence.connections.values()):
                end()

    def _take(self, connection: socket.socket) -> None:
        """Begin to open a connection; the oldest that is still opening gives way if there are too many."""
        if len(self._opening) >= MOST_OPENING:
            oldest = next(iter(self._opening))
            oldest.cancel()
            del self._opening[oldest]
        task = self._thread.loop.create_task(self._admit(connection))
        self._opening[task] = None
        task.add_done_callback(lambda done: self._opening.pop(done, None))

    async def _admit(self, connection: socket.socket) -> None:
        """Let one connection in, or close it."""
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self._refuse, connection)
            with contextlib.suppress(OSError, ValueError, KeyError, WorldError, asyncio.CancelledError):
                async with asyncio.timeout(OPENING_S):
                    if await self._speaks_tls(connection):
                        tls = await self._shake_hands(connection)
                        on_failure.callback(close_now, tls)
                        if await self._let_in(tls, await read_line(tls)):
                            on_failure.pop_all()

    async def _shake_hands(self, connection: socket.socket) -> ssl.SSLSocket:
        address = connection.getpeername()[0]
        try:
            return await secured(connection, self._context, is_gate=True)
        except ssl.SSLEOFError:
            raise
        except ssl.SSLError:
            self._on_event(StrangerCame(address))
            raise

    def _refuse(self, connection: socket.socket) -> None:
        self.num_refused += 1
        close_now(connection)

    async def _speaks_tls(self, connection: socket.socket) -> bool:
        """Whether a connection begins as TLS does; one that asks for the sealed key is served."""
        await ready(connection, to_write=False)
        if connection.recv(1, socket.MSG_PEEK) == _TLS_FIRST:
            return True
        if self._seal is None or connection.recv(len(ASKS_FOR_SEAL)) != ASKS_FOR_SEAL:
            return False
        loop = asyncio.get_running_loop()
        async with self._sealing:
            await loop.sock_sendall(connection, await loop.run_in_executor(None, self._seal))
        return False

    async def _let_in(self, tls: ssl.SSLSocket, hello: dict[str, Any]) -> bool:
        """Hand on a connection, and count it for its node; False when it may not come in."""
        node, purpose = str(hello["node"]), Purpose(hello["purpose"])
        if hello["lockstep"] != VERSION:
            tls.send(KEPT_OUT)
            return False
        if purpose is Purpose.WITHDRAWAL or self._is_shut:
            self._on_event(NodeWithdrew(hello) if purpose is Purpose.WITHDRAWAL else NodeCame(node, hello))
            tls.send(self._kept_out if self._is_shut else LET_IN)
            return False
        wants_store = purpose is Purpose.STORE and node not in self._barred
        store = await self._to_store(hello) if wants_store else None
        if node in self._barred:  # perhaps since a moment ago
            self._lock(store)
            if store is not None:
                close_now(store)
            tls.send(KEPT_OUT)
            return False
        presence = self._nodes.get(node)
        if presence is None:
            presence = self._nodes[node] = Presence(node, hello, time.monotonic())
            self._on_event(NodeCame(node, hello))
        presence.heard()
        number = next(self._numbers)
        pair = Pair(store, tls, presence.heard, lambda: self._ended(presence, number, store))
        presence.connections[number] = pair.close
        try:
            tls.send(LET_IN)  # nothing was sent before, so it fits
        except OSError:
            pair.close()
        return True

    def _ended(self, presence: Presence, number: int, store: socket.socket | None) -> None:
        """Count one connection less; its ends are closed next."""
        self._lock(store)
        del presence.connections[number]
        if not presence.connections:
            del self._nodes[presence.node]
            self._on_event(NodeGone(presence.node))

    async def _to_store(self, hello: dict[str, Any]) -> socket.socket:
        store = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            store.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._door is not None:
                store.bind(("127.0.0.1", 0))
                self._door.let_in(store.getsockname()[1])
            await asyncio.get_running_loop().sock_connect(store, ("127.0.0.1", self._targets[hello.get("store", "")]))
        except BaseException:
            self._lock(store)
            close_now(store)
            raise
        return store

    def _lock(self, store: socket.socket | None) -> None:
        """Let in nobody from the port of a connection that ends."""
        if self._door is not None and store is not None:
            self._door.forget(store.getsockname()[1])
