"""Another node's side of the star, how a node gets its side, and how one that cannot start says so in it.

Node 0 decides what becomes of the run, so a node that cannot start joins the star, says why, and leaves. A node 0 that cannot
start refuses all who come; where it cannot use its own key, its greeting says just that.

Runs in: the launcher's thread, beside one that calls node 0 (samebits-call) and one that a farewell may take (samebits-farewell).
"""

from __future__ import annotations

import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from samebits.errors import SamebitsError, UsageError
from samebits.launcher.nodes.address import Choice, ListenAddress
from samebits.launcher.nodes.calling import ANSWER_S, NotYet, Silent, Unreachable, call, key_of_job
from samebits.launcher.nodes.interfaces import listen
from samebits.launcher.nodes.key import Key, seal
from samebits.launcher.nodes.roster import Refused
from samebits.launcher.nodes.star import HostStar, Star
from samebits.launcher.nodes.wire import Wire
from samebits.protocol.message import packed

LOOK_THERE = "Correct --rdzv-endpoint, or look at what node 0 says."
CALL_S = 0.1
"""Between two calls at node 0 before there is a connection."""
END_S = 10.0
"""How long it waits until node 0 has read what was published last."""
SLOW_S = 30.0
"""How long something that listens and says nothing may be node 0 that begins."""


class NodeStar(Star):
    """On every other node. It begins to call node 0 at once.

    Args:
        node: this node.
        place: where node 0 listens.
        key: the run's; None: requested there.
        job: SLURM's, if the key is sealed for it.
        patience_s: how long node 0 may not listen yet.
    """

    def __init__(self, node: str, place: ListenAddress, key: Key | None, job: str, patience_s: float) -> None:
        super().__init__(node, self._take_answers)
        self._patience_s = patience_s
        self._wire: Wire | None = None
        self._is_over = self._was_unreachable = False
        self._call_until = time.monotonic() + patience_s
        self._answers: queue.SimpleQueue[Wire | Exception] = queue.SimpleQueue()
        self._caller = threading.Thread(target=self._call, args=(place, key, job), name="samebits-call", daemon=True)
        self._caller.start()

    def publish(self, entry: dict[str, Any]) -> None:
        self.send(entry)

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        if self._wire is not None:
            self._send(self._wire, packed(message, blob))

    def close(self) -> None:
        """Let node 0 read what was published last, for at most `END_S`, and end."""
        until = time.monotonic() + END_S
        is_half = False
        while self._wire is not None and (left_s := until - time.monotonic()) > 0:
            if not is_half and not self._wire.left_bytes:
                is_half = True
                self._wire.half_close()
            self.loop.wait(left_s)
        self._lose("")
        self._is_over = True
        # Else that thread may still wake the loop; it is a daemon, and the process ends before it.
        if not self._caller.is_alive():
            self.loop.close()

    def wires(self) -> Mapping[str, Wire]:
        return {"": self._wire} if self._wire is not None else {}

    def _call(self, place: ListenAddress, key: Key | None, job: str) -> None:
        """Call until node 0 answers, or it is over. Runs in a thread of its own, because a call may wait for seconds."""
        while not self._is_over:
            try:
                key = key or key_of_job(place, job)
                self._answers.put(call(place, key, self.node))
                break
            except (SamebitsError, OSError) as error:
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
                case wire:
                    self._wire = wire
                    self._attach("", wire)
                    self._emit({"kind": "there"})

    def _not_yet(self, error: NotYet, now: float) -> None:
        if not self._was_unreachable:
            self._was_unreachable = True
            if isinstance(error, Silent):
                # It has answered for `ANSWER_S` already, so a short patience is over.
                self._call_until = min(self._call_until, now + SLOW_S) if self._patience_s > ANSWER_S else now
            self._emit({"kind": "unreachable", "why": str(error)})
        if now >= self._call_until:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._is_over = True
        is_usage = isinstance(error, UsageError | Unreachable | Silent)
        problem, fix = str(error), LOOK_THERE
        if isinstance(error, UsageError | Unreachable):
            problem, fix = error.problem, error.fix
        self._emit({"kind": "failed", "is_usage": is_usage, "why": problem, "fix": fix})

    def _take(self, node: str, message: dict[str, Any], blob: bytes) -> None:
        match message.get("kind"):
            case "log":
                self._events += message["entries"]
                self.loop.wake()
            case "given up":
                self._lose(f"node 0 gave this node up: {message['why']}")
            case kind if kind in self.handlers:
                self.handlers[kind](node, message, blob)

    def _lose(self, why: str) -> None:
        """Node 0 is lost; reported once."""
        if self._wire is None:
            return
        self._wire.close()
        self._wire, self._is_over = None, True
        self._emit({"kind": "cut", "why": why})

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
        key: the run's; None: node 0 is asked for it, or cannot use its own.
        job: SLURM's, if the key is sealed for it.
        patience_s: how long node 0 may not listen yet.
    """
    if listener is None:
        return NodeStar(node, chosen.gate, key, job, patience_s)
    return HostStar(node, listener, key, chosen.meant, partial(seal, key, job) if job and key is not None else None)


CONNECT_S = 2.0
"""How long a node that cannot start tries to reach node 0."""
MOST_S = 4.0
"""How long it may take to inform the others: they answer once torch is imported."""
TURN_S = 0.25


def withdraw(place: ListenAddress, key: Key | None, job: str, refused: Refused) -> None:
    """Tell node 0, once it listens, why this node cannot start.

    Args:
        place: where it listens.
        key: the run's; None: requested there.
        job: SLURM's, if the key is sealed for it.
        refused: what they report.
    """
    star = NodeStar(secrets.token_hex(8), place, key, job, CONNECT_S)
    kinds: list[str] = []
    while not kinds or kinds[-1] == "unreachable":
        star.loop.wait(TURN_S)
        kinds += [str(event["kind"]) for event in star.read()]
    if "there" in kinds:
        star.publish({"kind": "withdrawal", "node": star.node, "problem": refused.problem, "fix": refused.fix})
    star.close()


def refuse_all(chosen: Choice, key: Key | None, job: str, refused: Refused, others: int) -> None:
    """On a node 0 that cannot start: refuse all who call, until so many others have, for at most `MOST_S`.

    Args:
        chosen: where it would be.
        key: the run's; None: it cannot be used here.
        job: SLURM's, if the key is to be sealed for it.
        refused: what they report.
        others: how many other nodes do not know it yet.

    Raises:
        PortTaken: another node of this run on this machine is the first one, or another program listens there.
        UsageError, EnvironmentFailure: it cannot listen there.
    """
    star = begin_star(secrets.token_hex(8), chosen, listen(chosen.gate), key, job=job, patience_s=0.0)
    why = {"problem": refused.problem, "fix": refused.fix}
    star.publish({"kind": "refused", "nodes": [], "for_all": True, **why})
    until, came = time.monotonic() + MOST_S, set[str]()
    while len(came) < others and time.monotonic() < until:
        star.loop.wait(TURN_S)
        came.update(star.wires(), (str(one["node"]) for one in star.read() if one["kind"] == "gone"))
    star.close()


def in_time(work: Callable[[], None]) -> None:
    """Do it in a thread, for at most `MOST_S`; what goes wrong there is not reported."""

    def do() -> None:
        with suppress(SamebitsError, OSError):
            work()

    thread = threading.Thread(target=do, name="samebits-farewell", daemon=True)
    thread.start()
    thread.join(MOST_S)
