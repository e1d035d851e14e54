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

import os
import select
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from lockstep.launcher.nodes.wire import Wire
from lockstep.machine.clocks import ticking


class Loop:
    """Of one thread.

    Args:
        tick_s: how often `ticked` is called.
        ticked: the timer's act, after those of all descriptors that are ready too.
        awake: the act after `wake`.
    """

    def __init__(self, tick_s: float, ticked: Callable[[], None], awake: Callable[[], None] = lambda: None) -> None:
        self._epoll = select.epoll()
        self._acts: dict[int, Callable[[int], None]] = {}
        self._ticked, self._awake = ticked, awake
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._timer = ticking(tick_s)
        self.watch(self._wake, self._on_wake)
        self.watch(self._timer, self._on_timer)

    def fileno(self) -> int:
        """For a selector: readable when `turn` has something to do."""
        return self._epoll.fileno()

    def turn(self) -> None:
        """Do what is to be done now, without waiting."""
        events = self._epoll.poll(0)
        for descriptor, mask in sorted(events, key=lambda event: event[0] == self._timer):
            if (act := self._acts.get(descriptor)) is not None:
                act(mask)

    def wait(self, limit_s: float) -> None:
        """One turn, as soon as there is something to do, or without after so long."""
        select.select([self], [], [], max(0.0, limit_s))
        self.turn()

    def watch(self, source: Any, act: Callable[[int], None], mask: int = select.EPOLLIN) -> None:
        """Call `act` in `turn` when a descriptor is ready; watching it again changes for what."""
        descriptor = source if isinstance(source, int) else source.fileno()
        if descriptor in self._acts:
            self._epoll.modify(descriptor, mask)
        else:
            self._epoll.register(descriptor, mask)
        self._acts[descriptor] = act

    def forget(self, source: Any) -> None:
        """Watch it no more; call it before it is closed."""
        descriptor = source if isinstance(source, int) else source.fileno()
        if self._acts.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def wake(self) -> None:
        """Let there be a next turn at once, which calls `awake`. Any thread may call it."""
        with suppress(OSError):
            os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Close what it made itself."""
        for descriptor in (self._timer, self._wake):
            self.forget(descriptor)
            os.close(descriptor)
        self._epoll.close()

    def _on_wake(self, _mask: int) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        self._awake()

    def _on_timer(self, _mask: int) -> None:
        with suppress(BlockingIOError):
            os.read(self._timer, 8)
        self._ticked()


BEAT_S = 0.5
"""Between two beats of a connection."""
SILENT_S, GIVEN_UP_S = 4.5, 30.0
"""After how long without a word it is said that a node is silent, and after how long it is given up."""
STILL_S = 1.5
"""A loop that did not look for longer stood still itself: that time counts against nobody."""
BEAT = {"kind": "beat"}


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
        return any(now - wire.heard_at >= for_s and not wire.is_acknowledged for wire in self._wires())

    def _on_tick(self) -> None:
        now = time.monotonic()
        slept_s = now - self._looked_at
        self._looked_at = now
        if slept_s > STILL_S:
            for wire in self._wires():
                wire.heard_at = min(now, wire.heard_at + slept_s)
        self._tick(now)

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
    def _wires(self) -> Iterable[Wire]:
        """The connections."""

    @abstractmethod
    def _tick(self, now: float) -> None:
        """Do what is to be done twice a second."""
