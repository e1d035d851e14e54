"""How gate and tunnel accept connections in a loop of asyncio: a few at a time, and patiently when files run out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

_TURN = 16
"""After so many, others have their turn."""
_OUT_OF_FILES_S = 0.1


def accept_from(
    listener: socket.socket, take: Callable[[socket.socket], None], loop: asyncio.AbstractEventLoop
) -> None:
    """Hand over each connection from now on, until `loop.remove_reader(listener)`. Called in the thread of the loop.

    Args:
        listener: a listening socket that does not block.
        take: called with each connection, which does not block either.
        loop: the loop.
    """

    def accept() -> None:
        for _ in range(_TURN):
            try:
                connection = listener.accept()[0]
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError:  # no descriptor or no memory is left: others give some back
                loop.remove_reader(listener)
                loop.call_later(_OUT_OF_FILES_S, accept_from, listener, take, loop)
                return
            connection.setblocking(False)
            take(connection)

    loop.add_reader(listener, accept)
