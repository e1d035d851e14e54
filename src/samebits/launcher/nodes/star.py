"""The star: node 0's launcher listens and the others are connected to it, all in the loop of whoever selects `fileno` and calls `read`.

    HostStar    on node 0: puts what nodes publish into one log, and sends it on to all
    NodeStar    on every other node, in `node_star`: one connection to node 0

`read` returns the same events on both, the entries of the log among them:

    there                     this node is in the star
    unreachable, failed       why node 0 is not reached yet, or will not be
    silent, heard             of a node, empty for node 0; `is_there`: its kernel has all that was sent
    unauthenticated, cut      an address without the key; why node 0 is lost

Neither decides anything about the run.
"""

from __future__ import annotations

import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from samebits.launcher.nodes.answering import Callers
from samebits.launcher.nodes.key import Key
from samebits.launcher.nodes.session import address_bytes
from samebits.launcher.nodes.wire import Loop, Message, Wire, WireEnded
from samebits.protocol.message import packed

BEAT_S = 0.5
"""Between two beats of a connection."""
SILENT_S, GIVEN_UP_S = 4.5, 30.0
"""After how long without a message a node is reported silent, and after how long it is given up."""
STILL_S = 1.5
"""A loop that did not look for longer stood still itself."""
LINGER_S = 8.0
"""How long node 0 stays for others that have not read how the run ends; a busy machine stood still for 3."""
MOST_UNAUTHENTICATED = 3
"""Of so many addresses it is reported that somebody there does not have the key."""
OF_A_ROUND = frozenset({"waits", "said", "fall", "ended", "decision", "path"})
"""Entries that mean nothing once the next round begins, so late joiners need not read them."""
BEAT = packed({"kind": "beat"})
Handler = Callable[[str, dict[str, Any], bytes], None]


class Star(ABC):
    """One node's part, of one thread.

    Args:
        node: this node.
        awake: what is done when the loop is woken.
    """

    def __init__(self, node: str, awake: Callable[[], None] = lambda: None) -> None:
        self.node = node
        self.handlers: dict[str, Handler] = {}
        """By kind, of messages that are no entries: each gets the node that sent it, the message and its bytes."""
        self.loop = Loop(BEAT_S, self._on_tick, awake)
        self._events: list[dict[str, Any]] = []
        self._looked_at = time.monotonic()

    def fileno(self) -> int:
        """For a selector: readable when `read` has something to do."""
        return self.loop.fileno()

    def read(self) -> list[dict[str, Any]]:
        """Do what is to be done now, and return what happened; does not block."""
        self.loop.turn()
        found, self._events = self._events, []
        return found

    def is_unanswered(self, now: float, for_s: float) -> bool:
        """Whether nothing came for so long on a connection, and what was sent is not acknowledged there either."""
        return any(now - wire.received_at >= for_s and not wire.is_acknowledged for wire in self.wires().values())

    def _on_tick(self) -> None:
        now = time.monotonic()
        slept_s = now - self._looked_at
        self._looked_at = now
        # [Note: time that a loop slept counts against nobody]
        # A launcher that was stopped, or whose machine swapped, has read nothing meanwhile: the others need not be silent.
        if slept_s > STILL_S:
            for wire in self.wires().values():
                wire.received_at = min(now, wire.received_at + slept_s)
        for node, wire in list(self.wires().items()):
            self._look_at(node, wire, now)

    def _look_at(self, node: str, wire: Wire, now: float) -> None:
        """Report that a node is silent, or no longer; give it up, or send it a beat."""
        silent_s = now - wire.received_at
        # One that sends again but does not get what is sent from here is not back.
        if wire.is_silent != (silent_s >= SILENT_S or (wire.is_silent and not wire.is_acknowledged)):
            wire.is_silent = not wire.is_silent
            kind = "silent" if wire.is_silent else "heard"
            self._emit({"kind": kind, "node": node, "is_there": wire.is_acknowledged})
        if silent_s >= GIVEN_UP_S and not wire.is_acknowledged:
            self._give_up(node, f"nothing was received from {'it' if node else 'node 0'} for {GIVEN_UP_S:.0f} s")
        elif not wire.left_bytes:
            self._send(wire, BEAT)

    def _attach(self, node: str, wire: Wire) -> None:
        """Serve a new connection."""

        def take(found: list[Message]) -> None:
            for message, blob in found:
                self._take(node, message, blob)

        wire.attach(self.loop, take, lambda why: self._ended(node, why))

    def _send(self, wire: Wire, content: bytes) -> None:
        try:
            wire.send_packed(content)
        except WireEnded as ended:
            wire.give_up(str(ended))

    def _emit(self, event: dict[str, Any]) -> None:
        """Let the next `read` return it."""
        self._events.append(event)
        self.loop.wake()

    # What the two do differently

    @abstractmethod
    def publish(self, entry: dict[str, Any]) -> None:
        """Send something to all nodes, or to node 0 alone what is for it."""

    @abstractmethod
    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        """Send node 0 a message that is no entry."""

    @abstractmethod
    def close(self) -> None:
        """Leave the star, once what was published has reached the others as far as they are there."""

    @abstractmethod
    def wires(self) -> Mapping[str, Wire]:
        """The connections by node; node 0 is the empty word."""

    @abstractmethod
    def _take(self, node: str, message: dict[str, Any], blob: bytes) -> None: ...

    @abstractmethod
    def _ended(self, node: str, why: str) -> None:
        """Its connection has ended."""

    @abstractmethod
    def _give_up(self, node: str, why: str) -> None:
        """It counts as gone."""


class HostStar(Star):
    """On node 0.

    Args:
        node: this node.
        listener: listens on one address; taken over.
        key: the run's; None: it cannot be used here, and nobody gets in.
        meant: addresses by which others may mean this node beside the listener's own.
        seal: makes the sealed key for whoever asks; None: nobody gets it.
    """

    def __init__(
        self,
        node: str,
        listener: socket.socket,
        key: Key | None,
        meant: Collection[str] = (),
        seal: Callable[[], bytes] | None = None,
    ) -> None:
        super().__init__(node)
        address, port = listener.getsockname()[:2]
        own = {address_bytes(one, port) for one in (address, *meant)}
        self._callers = Callers(listener, key, own, self.loop, admit=self._admit, reject=self._reject, seal=seal)
        self._nodes: dict[str, Wire] = {}
        self._log: list[dict[str, Any]] = []
        self._unsent: list[dict[str, Any]] = []
        self._unauthenticated: set[str] = set()
        self._emit({"kind": "there"})

    def nodes(self) -> list[str]:
        """The other nodes that are connected."""
        return [*self._nodes]

    def read(self) -> list[dict[str, Any]]:
        found = super().read()
        self._spread()
        return found

    def publish(self, entry: dict[str, Any]) -> None:
        match entry["kind"]:
            case "given up":
                self._give_up(str(entry["node"]), str(entry.get("why", "its launcher is stopped")))
            case "gauges":
                # Node 0 has its own already, and nobody else reads them.
                return
            case _:
                self._add(entry)
        self._spread()

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        self._take(self.node, message, blob)

    def send_to(self, node: str, message: dict[str, Any], blob: bytes = b"") -> None:
        """Send one node a message that is no entry; nothing happens where it is gone."""
        if node == self.node:
            self.handlers[message["kind"]](node, message, blob)
        elif (wire := self._nodes.get(node)) is not None:
            self._send(wire, packed(message, blob))

    def close(self) -> None:
        """Let others read what was published last, for at most `LINGER_S`, and end."""
        until = time.monotonic() + LINGER_S
        # A node closes its connection once it has read everything.
        while self._nodes and (left_s := until - time.monotonic()) > 0:
            self.loop.wait(left_s)
            self._spread()
        for wire in self._nodes.values():
            wire.close()
        self._nodes.clear()
        self._callers.close()
        self.loop.close()

    def wires(self) -> Mapping[str, Wire]:
        return self._nodes

    def _give_up(self, node: str, why: str) -> None:
        if (wire := self._nodes.get(node)) is not None:
            with suppress(WireEnded):
                wire.send({"kind": "given up", "why": why})
            self._ended(node, why)

    def _ended(self, node: str, why: str) -> None:  # noqa: ARG002 - of both sides
        if (wire := self._nodes.pop(node, None)) is not None:
            wire.close()
            self._add({"kind": "gone", "node": node})

    def _reject(self, address: str) -> None:
        if len(self._unauthenticated) < MOST_UNAUTHENTICATED and address not in self._unauthenticated:
            self._unauthenticated.add(address)
            self._emit({"kind": "unauthenticated", "address": address})

    def _admit(self, wire: Wire, messages: list[Message]) -> None:
        """Take in a node, whose first message has its name."""
        node = str(messages[0][0].get("node", ""))
        if not node or node in self._nodes:
            wire.close()
            return
        self._spread()
        self._nodes[node] = wire
        self._attach(node, wire)
        self._send(wire, packed({"kind": "log", "entries": self._log}))
        for message, blob in messages[1:]:
            self._take(node, message, blob)

    def _take(self, node: str, message: dict[str, Any], blob: bytes) -> None:
        match message.get("kind"):
            case "beat":
                return
            case "gauges":
                self._emit(message)
            case kind if kind in self.handlers:
                self.handlers[kind](node, message, blob)
            case _:
                self._add(message)

    def _add(self, entry: dict[str, Any]) -> None:
        """Put an entry into the log."""
        if entry.get("kind") == "roster":
            self._log = [one for one in self._log if one.get("kind") not in OF_A_ROUND]
        elif entry.get("kind") == "saved":
            self._log = [one for one in self._log if one.get("kind") != "saved"]
        self._log.append(entry)
        self._unsent.append(entry)
        self._emit(entry)

    def _spread(self) -> None:
        # A node that turns out to be gone while it is sent something adds an entry.
        while self._unsent:
            content = packed({"kind": "log", "entries": self._unsent})
            self._unsent = []
            for wire in list(self._nodes.values()):
                self._send(wire, content)

    def _on_tick(self) -> None:
        self._callers.tick(time.monotonic())
        super()._on_tick()
