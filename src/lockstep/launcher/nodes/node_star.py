"""Another node's side of the star, and how a node gets its side."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lockstep.errors import LockstepError, UsageError
from lockstep.launcher.nodes.address import Choice, Place
from lockstep.launcher.nodes.calling import ANSWER_S, NotYet, Silent, Unreachable, call, key_of_job
from lockstep.launcher.nodes.host_star import HostStar
from lockstep.launcher.nodes.key import Key, seal
from lockstep.launcher.nodes.session import address_bytes
from lockstep.launcher.nodes.star import BEAT_S, Star
from lockstep.launcher.nodes.wire import Message, Wire
from lockstep.protocol.message import packed

CALL_S = 0.1
"""Between two calls at node 0 before there is a connection."""
END_S = 10.0
"""How long it waits until node 0 has heard what was told last."""
SLOW_S = 30.0
"""How long something that listens and says nothing may be node 0 that begins."""


@dataclass(frozen=True)
class Calling:
    """How a node calls node 0.

    Args:
        place: where that listens.
        key: the run's; None: asked for there.
        job: SLURM's, if the key is sealed for it.
        patience_s: how long it may not listen yet.
    """

    place: Place
    key: Key | None = field(repr=False)
    job: str
    patience_s: float


class NodeStar(Star):
    """On every other node.

    Args:
        node: this node.
        calling: how it calls node 0; it begins at once.
    """

    def __init__(self, node: str, calling: Calling) -> None:
        super().__init__(node, BEAT_S, self._take_answers)
        self._calling = calling
        self._wire: Wire | None = None
        self._is_over = self._has_said = False
        self._call_until = time.monotonic() + calling.patience_s
        self._answers: queue.SimpleQueue[tuple[Wire, list[Message]] | Exception] = queue.SimpleQueue()
        self._caller = threading.Thread(target=self._call, name="lockstep-call", daemon=True)
        self._caller.start()

    def tell(self, told: dict[str, Any]) -> None:
        self.ask(told)

    def ask(self, told: dict[str, Any], blob: bytes = b"") -> None:
        if self._wire is not None:
            self._send("", self._wire, packed(told, blob))

    def close(self) -> None:
        """Let node 0 hear what was told last, for at most `END_S`, and end."""
        until = time.monotonic() + END_S
        is_half = False
        while self._wire is not None and (left_s := until - time.monotonic()) > 0:
            if not is_half and not self._wire.left_bytes:
                is_half = True
                self._wire.half_close()
            self.loop.wait(left_s)
        self._lose("")
        self._is_over = True
        if not self._caller.is_alive():  # else the process ends before it
            self.loop.close()

    def wires(self) -> Mapping[str, Wire]:
        return {"": self._wire} if self._wire is not None else {}

    def _call(self) -> None:
        """Call until node 0 answers, or it is over. Runs in a thread of its own, because a call may wait for seconds."""
        calling, key = self._calling, self._calling.key
        while not self._is_over:
            try:
                key = key or key_of_job(calling.place, calling.job)
                self._answers.put(call(calling.place, key, {"node": self.node, "purpose": "join"}))
                break
            except (LockstepError, OSError) as error:
                self._answers.put(error)
                if not isinstance(error, NotYet):
                    break
            self.loop.wake()
            time.sleep(CALL_S)
        self.loop.wake()

    def _take_answers(self) -> None:
        while not self._is_over and self._wire is None and not self._answers.empty():
            match self._answers.get():
                case NotYet() as error:
                    self._not_yet(error, time.monotonic())
                case Exception() as error:
                    self._fail(error)
                case (wire, early):
                    self._wire = wire
                    self._attach("", wire)
                    self._say({"kind": "there"})
                    for told, blob in early:
                        self._take("", told, blob)

    def _not_yet(self, error: NotYet, now: float) -> None:
        if isinstance(error, Silent):
            if self._calling.patience_s <= ANSWER_S:
                self._fail(error)
                return
            self._call_until = min(self._call_until, now + SLOW_S) if not self._has_said else self._call_until
        if not self._has_said:
            self._has_said = True
            self._say({"kind": "unreachable", "why": str(error)})
        if now >= self._call_until:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._is_over = True
        is_usage = isinstance(error, UsageError | Unreachable | Silent)
        problem, fix = str(error), "Correct --rdzv-endpoint, or look at what node 0 says."
        if isinstance(error, UsageError | Unreachable):
            problem, fix = error.problem, error.fix
        self._say({"kind": "failed", "is_usage": is_usage, "why": problem, "fix": fix})

    def _take(self, node: str, told: dict[str, Any], blob: bytes) -> None:
        match told.get("kind"):
            case "log":
                self._heard += told["entries"]
                self.loop.wake()
            case "given up":
                self._lose(f"node 0 gave this node up: {told['why']}")
            case kind if kind in self.takers:
                self.takers[kind](node, told, blob)

    def _lose(self, why: str) -> None:
        """Node 0 is lost; said once."""
        if self._wire is None:
            return
        self._wire.close()
        self._wire, self._is_over = None, True
        self._say({"kind": "cut", "why": why})

    def _ended(self, node: str, why: str) -> None:  # noqa: ARG002 - of both sides
        self._lose(f"node 0 is gone ({why})")

    def _give_up(self, node: str, why: str) -> None:  # noqa: ARG002 - of both sides
        self._lose(why)


def begin_star(
    node: str, chosen: Choice, listener: socket.socket | None, key: Key | None, *, job: str, patience_s: float
) -> Star:
    """Node 0's where there is a listening socket, which is taken over; else one that begins to call node 0.

    Args:
        node: this node.
        chosen: its address, and node 0's.
        listener: node 0's.
        key: the run's; None: node 0 is asked for it.
        job: SLURM's, if the key is sealed for it.
        patience_s: how long node 0 may not listen yet.
    """
    place = chosen.gate
    if listener is None:
        return NodeStar(node, Calling(place, key, job, patience_s))
    if key is None:
        raise ValueError("node 0 has the key")
    meant = {address_bytes(address, place.port) for address in chosen.meant}
    return HostStar(node, listener, key, meant, partial(seal, key, job) if job else None)
