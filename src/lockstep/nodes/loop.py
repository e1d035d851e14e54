"""Many descriptors behind one: whoever selects `fileno` and calls `turn` serves them all, and a timer, in its own thread."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from lockstep.machine.ticking import ticking


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
