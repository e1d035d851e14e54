"""The star: node 0's launcher listens and the others are connected to it, all in the loop of whoever selects `fileno` and calls `read`.

    HostStar    host_star    on node 0: puts what nodes tell into one list, and sends it on to all
    NodeStar    node_star    on every other node: one connection to node 0

Both say what happened in the same words (`read`), the entries of the list among them:

    there                     this node is in the star
    unreachable, failed       why node 0 is not reached yet, or will not be
    silent, heard             of a node, empty for node 0; `is_there`: its kernel has all that was sent
    stranger, cut             an address without the key; why node 0 is lost

They decide nothing about the run.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from lockstep.launcher.nodes.wire import Loop, Message, Wire, WireEnded
from lockstep.protocol.message import packed

BEAT_S = 0.5
"""Between two beats of a connection."""
SILENT_S, GIVEN_UP_S = 4.5, 30.0
"""After how long without a word it is said that a node is silent, and after how long it is given up."""
STILL_S = 1.5
"""A loop that did not look for longer stood still itself."""
BEAT = packed({"kind": "beat"})


class Star(ABC):
    """One node's part, of one thread.

    Args:
        node: this node.
        tick_s: how often it looks.
        awake: what is done when the loop is woken.
    """

    def __init__(self, node: str, tick_s: float, awake: Callable[[], None] = lambda: None) -> None:
        self.node = node
        self.takers: dict[str, Callable[[str, dict[str, Any], bytes], None]] = {}
        """Who takes messages of a kind that is no entry: they get the node that sent it, the message and its bytes."""
        self.loop = Loop(tick_s, self._on_tick, awake)
        self._heard: list[dict[str, Any]] = []
        self._looked_at = time.monotonic()

    def fileno(self) -> int:
        """For a selector: readable when `read` has something to do."""
        return self.loop.fileno()

    def read(self) -> list[dict[str, Any]]:
        """Do what is to be done now, and return what happened; does not block."""
        self.loop.turn()
        return self._happened()

    def is_unanswered(self, now: float, for_s: float) -> bool:
        """Whether nothing came for so long on a connection, and what was sent is not acknowledged there either."""
        return any(now - wire.heard_at >= for_s and not wire.is_acknowledged for wire in self.wires().values())

    def _on_tick(self) -> None:
        now = time.monotonic()
        slept_s = now - self._looked_at
        self._looked_at = now
        # [Note: time that a loop slept counts against nobody]
        # A launcher that was stopped, or whose machine swapped, has read nothing meanwhile: the others need not be silent.
        if slept_s > STILL_S:
            for wire in self.wires().values():
                wire.heard_at = min(now, wire.heard_at + slept_s)
        for node, wire in list(self.wires().items()):
            self._look_at(node, wire, now)

    def _look_at(self, node: str, wire: Wire, now: float) -> None:
        """Report that a node is silent, or heard of again; give it up, or send it a beat."""
        silent_s = now - wire.heard_at
        if (silent_s >= SILENT_S) != wire.is_silent:
            wire.is_silent = not wire.is_silent
            kind = "silent" if wire.is_silent else "heard"
            self._say({"kind": kind, "node": node, "is_there": wire.is_acknowledged})
        if silent_s >= GIVEN_UP_S and not wire.is_acknowledged:
            self._give_up(node, f"nothing was heard of {'it' if node else 'node 0'} for {GIVEN_UP_S:.0f} s")
        elif not wire.left_bytes:
            self._send(node, wire, BEAT)

    def _attach(self, node: str, wire: Wire) -> None:
        """Serve a new connection."""

        def take(found: list[Message]) -> None:
            for told, blob in found:
                self._take(node, told, blob)

        wire.attach(self.loop, take, lambda why: self._ended(node, why))

    def _send(self, node: str, wire: Wire, content: bytes) -> None:
        try:
            wire.send_packed(content)
        except WireEnded as ended:
            self._ended(node, str(ended))

    def _happened(self) -> list[dict[str, Any]]:
        found, self._heard = self._heard, []
        return found

    def _say(self, told: dict[str, Any]) -> None:
        """Let the next `read` return it."""
        self._heard.append(told)
        self.loop.wake()

    # What the two do differently

    @abstractmethod
    def tell(self, told: dict[str, Any]) -> None:
        """Tell all nodes something, or node 0 alone what is for it."""

    @abstractmethod
    def ask(self, told: dict[str, Any], blob: bytes = b"") -> None:
        """Send node 0 a message that is no entry."""

    @abstractmethod
    def close(self) -> None:
        """Leave the star, once what was told has reached the others as far as they are there."""

    @abstractmethod
    def wires(self) -> Mapping[str, Wire]:
        """The connections by node; node 0 is the empty word."""

    @abstractmethod
    def _take(self, node: str, told: dict[str, Any], blob: bytes) -> None:
        """Take a message."""

    @abstractmethod
    def _ended(self, node: str, why: str) -> None:
        """Its connection has ended."""

    @abstractmethod
    def _give_up(self, node: str, why: str) -> None:
        """It counts as gone."""
