"""One node's part of a preflight: a socket that the others connect to for a moment, and connections to theirs."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from lockstep.nodes.address import family
from lockstep.nodes.loop import Loop
from lockstep.nodes.preflight import Check, partners

CONNECT_S = 3.0
"""How long a connection may take."""
LINGER_S = 5.0
"""How long others may take longer than this node."""
_ANSWER_BYTES = 100
Answer = float | str
"""How far this clock is ahead of another node's, less what the way there may explain; or why that was not reached."""


@dataclass(eq=False)
class _Call:
    """A connection to another node's socket."""

    end: socket.socket
    token: str
    began: float
    until: float
    came: bytes = b""


class Reach:
    """Does what the list asks of this node; `take` gets every entry, `look` is called twice a second.

    Args:
        node: this node.
        address: the one that its ranks will use for exchanges between nodes.
        tell: tells all nodes.
        loop: watches the sockets.
    """

    def __init__(self, node: str, address: str, tell: Callable[[dict[str, Any]], None], loop: Loop) -> None:
        self._node, self._address, self._tell, self._loop = node, address, tell, loop
        self._check: Check | None = None
        self._gone: set[str] = set()
        self._listener: socket.socket | None = None
        self._token = ""
        self._calls: dict[str, _Call] = {}
        self._answers: dict[str, Answer] = {}
        self._has_asked = False
        self._until = 0.0

    def take(self, entry: Mapping[str, Any]) -> None:
        """Take the next entry of the list."""
        match entry.get("kind"):
            case "preflight" if self._node in entry["nodes"]:
                self.close()
                self._begin(Check.of(entry))
            case "listens" | "reached" if self._check is not None:
                self._check.take(entry)
            case "gone":
                self._gone.add(str(entry["node"]))
            case "roster" | "refused":
                self.close()
        self.look(time.monotonic())

    def look(self, now: float) -> None:
        """Go on, as far as the others are."""
        check = self._check
        if check is None:
            return
        for node, call in list(self._calls.items()):
            if now > call.until:
                self._answered(node, "nothing answers")
        if not self._has_asked and check.all_listen(self._gone):
            self._has_asked = True
            self._ask_all(check, now)
        if self._has_asked and not self._calls and not self._until:
            self._until = now + LINGER_S
            self._tell({"kind": "reached", "number": check.number, "node": self._node, **self._found(check)})
        if self._until and (now > self._until or check.is_over(self._gone)):
            self.close()

    def close(self) -> None:
        """End what is under way."""
        for call in self._calls.values():
            self._loop.forget(call.end)
            call.end.close()
        if self._listener is not None:
            self._loop.forget(self._listener)
            self._listener.close()
        self._check, self._listener, self._has_asked, self._until = None, None, False, 0.0
        self._calls, self._answers = {}, {}

    def _begin(self, check: Check) -> None:
        self._check, self._token, port, why = check, secrets.token_hex(8), 0, ""
        try:
            self._listener = _socket(self._address)
            self._listener.bind((self._address, 0))
            self._listener.listen(len(check.nodes))
            self._loop.watch(self._listener, self._answer)
            port = self._listener.getsockname()[1]
        except OSError as error:
            why = f"its address cannot be used: {os.strerror(error.errno or 0)}"
        told = {"address": self._address, "port": port, "token": self._token, "why": why}
        self._tell({"kind": "listens", "number": check.number, "node": self._node, **told})

    def _answer(self, _mask: int) -> None:
        """Say who this is and what its clock shows; nothing is read."""
        assert self._listener is not None
        with suppress(OSError):
            end, _ = self._listener.accept()
            with end:
                end.send(f"{self._token} {time.time()}".encode())

    def _ask_all(self, check: Check, now: float) -> None:
        """Connect to the others, as far as this node is to."""
        for place in partners(check.nodes.index(self._node), len(check.nodes)):
            if (peer := check.listening.get(node := check.nodes[place])) is None:
                continue
            if not peer["port"]:
                self._answers[node] = str(peer["why"])
                continue
            end = _socket(self._address)
            call = self._calls[node] = _Call(end, str(peer["token"]), time.time(), now + CONNECT_S)
            try:
                end.bind((self._address, 0))
                with suppress(BlockingIOError):
                    end.connect((peer["address"], peer["port"]))
            except OSError as error:
                self._loop.watch(end, lambda _mask: None)
                self._answered(node, _why(error))
            else:
                self._loop.watch(end, partial(self._hear, node, call))

    def _hear(self, node: str, call: _Call, _mask: int) -> None:
        try:
            piece = call.end.recv(_ANSWER_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._answered(node, _why(error))
            return
        call.came += piece
        if piece and len(call.came) < _ANSWER_BYTES:
            return
        ended = time.time()
        token, _, theirs = call.came.decode(errors="replace").partition(" ")
        if token != call.token:
            self._answered(node, "another program answers" if call.came else "it broke off")
            return
        off_s = (call.began + ended) / 2 - float(theirs)
        self._answered(node, max(0.0, abs(off_s) - (ended - call.began) / 2) * (1 if off_s > 0 else -1))

    def _answered(self, node: str, answer: Answer) -> None:
        call = self._calls.pop(node)
        self._loop.forget(call.end)
        call.end.close()
        self._answers[node] = answer
        self._loop.wake()

    def _found(self, check: Check) -> dict[str, Any]:
        """Which nodes cannot be reached, and how far this clock is ahead of node 0's."""
        clock = self._answers.get(check.nodes[0])
        not_reached = {node: answer for node, answer in self._answers.items() if isinstance(answer, str)}
        return {"not": not_reached, "clock_s": clock if isinstance(clock, float) else None}


def _socket(address: str) -> socket.socket:
    end = socket.socket(socket.AF_INET6 if family(address) == 6 else socket.AF_INET, socket.SOCK_STREAM)
    end.setblocking(False)
    return end


def _why(error: OSError) -> str:
    if error.errno == errno.ETIMEDOUT:
        return "nothing answers"
    return os.strerror(error.errno).lower() if error.errno else "it broke off"
