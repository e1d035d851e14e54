"""Who notices that another rank is gone while this one computes, or is blocked in an exchange with a third one.

A thread per transport, asleep but for 20 looks a second at the node's memory. It ends with the transport, or with the first
loss.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Sequence

from lockstep.errors import LockstepError, PeerLost
from lockstep.machine.effort import name_own_thread
from lockstep.rank.transport.across import Across
from lockstep.rank.transport.contract import Transport

LOOK_MS = 50
"""Between two looks."""
TOLD = "Another node is lost. Its launcher has ended, or it cannot be reached."
CLOSER_LOOK_S = 0.002
"""While something that was sent before a connection ended has not been read yet."""


class Watch:
    """Looks until it is stopped, or something is wrong.

    Args:
        across: the connections, if there are any.
        local: what can be looked at: the groups of this rank's node.
        give_up: called once, with what is wrong, in the thread.
        is_told: whether somebody knows of a loss that connections do not show.
    """

    def __init__(
        self,
        across: Across | None,
        local: Sequence[Transport],
        give_up: Callable[[PeerLost], object],
        is_told: Callable[[], bool],
    ) -> None:
        self._stop = os.eventfd(0)
        self._owner = os.getpid()
        args = (across, tuple(local), give_up, is_told, self._stop)
        self._thread = threading.Thread(target=_look, args=args, name="lockstep watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, and wait for it; not for the thread itself."""
        if self._stop < 0 or self._owner != os.getpid():
            return
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        os.close(self._stop)
        self._stop = -1


def _look(
    across: Across | None,
    local: Sequence[Transport],
    give_up: Callable[[PeerLost], object],
    is_told: Callable[[], bool],
    stop: int,
) -> None:
    name_own_thread("watch")
    watched = {os.dup(one.descriptor): peer for one, peer in across.connections()} if across is not None else {}
    lost = None
    try:
        lost = _first_loss(across, local, watched, is_told, stop)
    finally:
        for descriptor in watched:
            os.close(descriptor)
    if lost is not None:
        give_up(lost)


def _first_loss(
    across: Across | None,
    local: Sequence[Transport],
    watched: dict[int, int],
    is_told: Callable[[], bool],
    stop: int,
) -> PeerLost | None:
    poller = select.poll()
    poller.register(stop, select.POLLIN)
    for descriptor in watched:
        poller.register(descriptor, select.POLLRDHUP)
    while True:
        closed = [descriptor for descriptor, _ in poller.poll(LOOK_MS)]
        if stop in closed:
            return None
        for descriptor in closed:
            peer = watched[descriptor]
            assert across is not None
            is_over = across.is_over(descriptor, peer)
            if is_over:
                return across.lost(peer)
            if is_over is None:
                time.sleep(CLOSER_LOOK_S)
            else:
                poller.unregister(descriptor)
        if is_told():
            return PeerLost(TOLD, is_dead=True)
        if (lost := _loss_in_node(local)) is not None:
            return lost


def _loss_in_node(local: Sequence[Transport]) -> PeerLost | None:
    try:
        for group in local:
            group.look()
    except PeerLost as error:
        return error
    except LockstepError as error:
        return PeerLost(str(error))
    return None
