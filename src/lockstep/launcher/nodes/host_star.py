"""Node 0's side of the star."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from lockstep.launcher.nodes.calling import VERSION
from lockstep.launcher.nodes.doorstep import Doorstep
from lockstep.launcher.nodes.key import Key
from lockstep.launcher.nodes.roster import Withdrawal
from lockstep.launcher.nodes.session import address_bytes
from lockstep.launcher.nodes.star import BEAT_S, Star
from lockstep.launcher.nodes.wire import Wire, WireEnded
from lockstep.protocol.message import packed

LINGER_S = 8.0
"""How long node 0 stays for others that have not heard how the run ends; a busy machine stood still for 3."""
MOST_STRANGERS = 3
"""Of so many addresses it is said that somebody there does not have the key."""
OF_A_ROUND = frozenset({"waits", "said", "fall", "ended", "decision", "path"})
"""Entries that mean nothing once the next round begins, so late joiners need not read them."""


class HostStar(Star):
    """On node 0.

    Args:
        node: this node.
        listener: listens on one address; taken over.
        key: the run's.
        meant: addresses by which others may mean this node beside the listener's own, as `address_bytes`.
        seal: makes the sealed key for whoever asks; None: nobody gets it.
    """

    def __init__(
        self,
        node: str,
        listener: socket.socket,
        key: Key,
        meant: Collection[bytes] = (),
        seal: Callable[[], bytes] | None = None,
    ) -> None:
        super().__init__(node, BEAT_S)
        own = {address_bytes(*listener.getsockname()[:2]), *meant}
        self._doorstep = Doorstep(
            listener, key, own, self.loop, let_in=self._let_in, stranger=self._stranger, seal=seal
        )
        self._nodes: dict[str, Wire] = {}
        self._barred: set[str] = set()
        self._log: list[dict[str, Any]] = []
        self._fresh: list[dict[str, Any]] = []
        """Entries that were not sent on yet."""
        self._strangers: set[str] = set()
        self._say({"kind": "there"})

    def nodes(self) -> list[str]:
        """The other nodes that are connected."""
        return [*self._nodes]

    def read(self) -> list[dict[str, Any]]:
        self.loop.turn()
        self._spread()
        return self._happened()

    def tell(self, told: dict[str, Any]) -> None:
        match told["kind"]:
            case "given up":
                self.bar(str(told["node"]), str(told.get("why", "its launcher is stopped")))
            case "gauges":  # node 0's own, which nobody else wants
                return
            case _:
                self._add(told)
        self._spread()

    def ask(self, told: dict[str, Any], blob: bytes = b"") -> None:
        self._take(self.node, told, blob)

    def send_to(self, node: str, told: dict[str, Any], blob: bytes = b"") -> None:
        """Send one node a message that is no entry; nothing happens where it is gone."""
        if node == self.node:
            self.takers[told["kind"]](node, told, blob)
        elif (wire := self._nodes.get(node)) is not None:
            self._send(node, wire, packed(told, blob))

    def bar(self, node: str, why: str) -> None:
        """Give a node up."""
        # [Note: a node that was given up stays out]
        # Its link may come back while its ranks still wait in a round that the others have left.
        self._barred.add(node)
        if (wire := self._nodes.get(node)) is not None:
            with suppress(WireEnded):
                wire.send({"kind": "given up", "why": why})
            self._lose(node)

    def close(self) -> None:
        """Let others hear what was told last, for at most `LINGER_S`, and end."""
        until = time.monotonic() + LINGER_S
        while self._nodes and (left_s := until - time.monotonic()) > 0:
            self.loop.wait(left_s)
            self._spread()
        for wire in self._nodes.values():
            wire.close()
        self._nodes.clear()
        self._doorstep.close()
        self.loop.close()

    def wires(self) -> Mapping[str, Wire]:
        return self._nodes

    def _give_up(self, node: str, why: str) -> None:
        self.bar(node, why)

    def _ended(self, node: str, why: str) -> None:  # noqa: ARG002 - of both sides
        self._lose(node)

    def _stranger(self, address: str) -> None:
        if len(self._strangers) < MOST_STRANGERS and address not in self._strangers:
            self._strangers.add(address)
            self._say({"kind": "stranger", "address": address})

    def _let_in(self, wire: Wire, first: dict[str, Any]) -> None:
        """Take in a node whose first message this is, or hear why it does not take part."""
        node, purpose = str(first.get("node", "")), first.get("purpose")
        is_member = purpose == "join" and node and node not in self._barred and node not in self._nodes
        may_speak = first.get("lockstep") == VERSION and (is_member or purpose == "withdrawal")
        try:
            self._spread()
            wire.send({"ok": may_speak})
            if may_speak and is_member:
                wire.send({"kind": "log", "entries": self._log})
        except WireEnded:
            may_speak = False
        if may_speak and is_member:
            self._nodes[node] = wire
            self._attach(node, wire)
            return
        if may_speak:
            self._add(Withdrawal.of(first).entry())
        wire.close()

    def _take(self, node: str, told: dict[str, Any], blob: bytes) -> None:
        match told.get("kind"):
            case "beat":
                return
            case "gauges":
                self._say(told)
            case kind if kind in self.takers:
                self.takers[kind](node, told, blob)
            case _:
                self._add(told)

    def _add(self, entry: dict[str, Any]) -> None:
        """Put an entry into the list."""
        if entry.get("kind") == "roster":
            self._log = [one for one in self._log if one.get("kind") not in OF_A_ROUND]
        elif entry.get("kind") == "saved":
            self._log = [one for one in self._log if one.get("kind") != "saved"]
        self._log.append(entry)
        self._fresh.append(entry)
        self._say(entry)

    def _spread(self) -> None:
        # A node that turns out to be gone while it is sent something adds an entry.
        while self._fresh:
            content = packed({"kind": "log", "entries": self._fresh})
            self._fresh = []
            for node, wire in list(self._nodes.items()):
                self._send(node, wire, content)

    def _lose(self, node: str) -> None:
        """A node is gone."""
        if (wire := self._nodes.pop(node, None)) is not None:
            wire.close()
            self._add({"kind": "gone", "node": node})

    def _on_tick(self) -> None:
        self._doorstep.tick(time.monotonic())
        super()._on_tick()
