"""Another node's side of the star."""

from __future__ import annotations

import select
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from lockstep.errors import LockstepError, UsageError
from lockstep.nodes.address import Place
from lockstep.nodes.calling import ANSWER_S, NotYet, Silent, Unreachable, call, key_of_job
from lockstep.nodes.key import Key
from lockstep.nodes.star import BEAT, BEAT_S, GIVEN_UP_S, SILENT_S, Star
from lockstep.nodes.wire import Wire, WireEnded

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
        calling: how it calls node 0; it begins with the first `read`.
    """

    def __init__(self, node: str, calling: Calling) -> None:
        super().__init__(node, CALL_S, self._on_wake)
        self._calling, self._key = calling, calling.key
        self._wire: Wire | None = None
        self._is_silent = self._is_over = self._has_said = False
        self._call_until = time.monotonic() + calling.patience_s
        self.loop.wake()

    def tell(self, told: dict[str, Any]) -> None:
        self.ask(told)

    def ask(self, told: dict[str, Any], blob: bytes = b"") -> None:
        if self._wire is None:
            return
        try:
            self._wire.send(told, blob)
        except WireEnded as ended:
            self._lose(f"node 0 is gone ({ended})")
            return
        if self._wire.left_bytes:
            self.loop.watch(self._wire, self._on_wire, self._wire.mask)

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
        self.loop.close()

    def _wires(self) -> Iterable[Wire]:
        return [self._wire] if self._wire is not None else []

    def _on_wake(self) -> None:
        if self._wire is None and not self._is_over:
            self._call(time.monotonic())

    def _call(self, now: float) -> None:
        calling = self._calling
        try:
            if self._key is None:
                self._key = key_of_job(calling.place, calling.job)
            self._wire, early = call(calling.place, self._key, {"node": self.node, "purpose": "join"})
        except NotYet as error:
            self._not_yet(error, now)
        except (LockstepError, OSError) as error:
            self._fail(error)
        else:
            self.loop.tick_each(BEAT_S)
            self.loop.watch(self._wire, self._on_wire, self._wire.mask)
            self._say({"kind": "there"})
            for told, blob in early:
                self._take(told, blob)

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

    def _on_wire(self, mask: int) -> None:
        assert self._wire is not None
        try:
            if mask & select.EPOLLOUT:
                self._wire.flush()
                self.loop.watch(self._wire, self._on_wire, self._wire.mask)
            found = self._wire.receive() if mask & ~select.EPOLLOUT else []
        except WireEnded as ended:
            self._lose(f"node 0 is gone ({ended})")
            return
        for told, blob in found:
            self._take(told, blob)

    def _take(self, told: dict[str, Any], blob: bytes) -> None:
        match told.get("kind"):
            case "log":
                self._heard += told["entries"]
                self.loop.wake()
            case "given up":
                self._lose(f"node 0 gave this node up: {told['why']}")
            case kind if kind in self.takers:
                self.takers[kind]("", told, blob)

    def _lose(self, why: str) -> None:
        """Node 0 is lost; said once."""
        if self._wire is None:
            return
        self.loop.forget(self._wire)
        self._wire.close()
        self._wire, self._is_over = None, True
        self._say({"kind": "cut", "why": why})

    def _tick(self, now: float) -> None:
        if self._wire is None:
            if not self._is_over:
                self._call(now)
            return
        silent_s = now - self._wire.heard_at
        if (silent_s >= SILENT_S) != self._is_silent:
            self._is_silent = not self._is_silent
            kind = "silent" if self._is_silent else "heard"
            self._say({"kind": kind, "node": "", "is_there": self._wire.is_acknowledged})
        if silent_s >= GIVEN_UP_S and not self._wire.is_acknowledged:
            self._lose(f"nothing was heard of node 0 for {GIVEN_UP_S:.0f} s")
        elif not self._wire.left_bytes:
            self.ask(BEAT)
