"""Node 0's side of the star."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lockstep.launcher.nodes.calling import VERSION
from lockstep.launcher.nodes.doorstep import Doorstep
from lockstep.launcher.nodes.key import Key
from lockstep.launcher.nodes.roster import Withdrawal
from lockstep.launcher.nodes.session import address_bytes
from lockstep.launcher.nodes.star import BEAT, BEAT_S, GIVEN_UP_S, SILENT_S, Star
from lockstep.launcher.nodes.wire import Wire, WireEnded
from lockstep.protocol.message import packed

LINGER_S = 8.0
"""How long node 0 stays for others that have not heard how the run ends; a busy machine stood still for 3."""
MOST_STRANGERS = 3
"""Of so many addresses it is said that somebody there does not have the key."""
OF_A_ROUND = frozenset({"waits", "said", "fall", "ended", "decision", "path"})
"""Entries that mean nothing once the next round begins, so late joiners need not read them."""


@dataclass(eq=False)
class _There:
    """A node that is connected."""

    wire: Wire
    act: Callable[[int], None] = lambda _mask: None
    is_silent: bool = False


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
        self._nodes: dict[str, _There] = {}
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
        elif (there := self._nodes.get(node)) is not None:
            self._send(node, there, packed(told, blob))

    def bar(self, node: str, why: str) -> None:
        """Give a node up, and let it in no more; its link may be cut, and come back."""
        self._barred.add(node)
        if (there := self._nodes.get(node)) is not None:
            with suppress(WireEnded):
                there.wire.send({"kind": "given up", "why": why})
            self._lose(node)

    def close(self) -> None:
        """Let others hear what was told last, for at most `LINGER_S`, and end."""
        until = time.monotonic() + LINGER_S
        while self._nodes and (left_s := until - time.monotonic()) > 0:
            self.loop.wait(left_s)
            self._spread()
        for there in self._nodes.values():
            self.loop.forget(there.wire)
            there.wire.close()
        self._nodes.clear()
        self._doorstep.close()
        self.loop.close()

    def _wires(self) -> Iterable[Wire]:
        return [there.wire for there in self._nodes.values()]

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
            self._nodes[node] = there = _There(wire)
            there.act = lambda mask: self._on_wire(node, there, mask)
            self.loop.watch(wire, there.act, wire.mask)
            return
        if may_speak:
            self._add(Withdrawal.of(first).entry())
        wire.close()

    def _on_wire(self, node: str, there: _There, mask: int) -> None:
        try:
            if mask & select.EPOLLOUT:
                there.wire.flush()
                self.loop.watch(there.wire, there.act, there.wire.mask)
            found = there.wire.receive() if mask & ~select.EPOLLOUT else []
        except WireEnded:
            self._lose(node)
            return
        for told, blob in found:
            self._take(node, told, blob)

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
        while self._fresh:  # a node that turns out to be gone adds that
            content = packed({"kind": "log", "entries": self._fresh})
            self._fresh = []
            for node, there in list(self._nodes.items()):
                self._send(node, there, content)

    def _send(self, node: str, there: _There, content: bytes) -> None:
        try:
            there.wire.send_packed(content)
        except WireEnded:
            self._lose(node)
            return
        if there.wire.left_bytes:
            self.loop.watch(there.wire, there.act, there.wire.mask)

    def _lose(self, node: str) -> None:
        """A node is gone."""
        if (there := self._nodes.pop(node, None)) is not None:
            self.loop.forget(there.wire)
            there.wire.close()
            self._add({"kind": "gone", "node": node})

    def _tick(self, now: float) -> None:
        self._doorstep.tick(now)
        for node, there in list(self._nodes.items()):
            silent_s = now - there.wire.heard_at
            if (silent_s >= SILENT_S) != there.is_silent:
                there.is_silent = not there.is_silent
                kind = "silent" if there.is_silent else "heard"
                self._say({"kind": kind, "node": node, "is_there": there.wire.is_acknowledged})
            if silent_s >= GIVEN_UP_S and not there.wire.is_acknowledged:
                self.bar(node, f"nothing was heard of it for {GIVEN_UP_S:.0f} s")
            elif not there.wire.left_bytes:
                self._send(node, there, packed(BEAT))
