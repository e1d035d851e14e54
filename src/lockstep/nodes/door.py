"""The door of the store: its port on 127.0.0.1 takes connections of the star only, not those of other users of the machine.

The store accepts by itself and asks nobody who calls. So the kernel asks: a packet filter on the listening socket drops whatever
does not come from a port that the star holds, before a connection exists. The star binds a port, lets it in, and connects
from it; nobody else can send from a port that is bound. A connection keeps the filter with which it began, so only ports
of connections that begin have to be listed. It needs no rights.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct

from lockstep.errors import WorldError
from lockstep.nodes.callers import strangers

MOST_LISTED = 256
_SO_ATTACH_FILTER = 26
_LOAD_HALF, _LOAD_WORD, _EQUALS, _RETURN = 0x28, 0x20, 0x15, 0x06
_IP_HEADER, _SENDER_IN_IP, _PORT_IN_TCP = -0x100000, 12, 0
"""Offsets: where the filter finds the header of IP, the sender in it, and the sender's port in that of TCP."""
_LOOPBACK = 0x7F000001


class Door:
    """Who may connect to a listening socket on 127.0.0.1."""

    def __init__(self, listener: socket.socket) -> None:
        """Lock it for everybody. Connections that exist go on.

        Args:
            listener: listens on 127.0.0.1; it is used through a copy, and may be handed to whoever accepts.

        Raises:
            WorldError: the kernel has no such filters, or a process of another user is connected already.
        """
        self._copy = listener.dup()
        self._ports: list[int] = []
        try:
            self._set()
        except OSError as error:
            self._copy.close()
            raise WorldError(f"This kernel cannot lock the store's port ({os.strerror(error.errno or 0)}).") from None
        if users := strangers(listener.getsockname()):
            self._copy.close()
            raise WorldError(
                f"A process of user {users[0]} connected to the store of this run while it began: start again."
            )

    def let_in(self, port: int) -> None:
        """Let in connections from this port of 127.0.0.1. The caller has bound it."""
        self._ports = [*self._ports[-MOST_LISTED + 1 :], port]
        self._set()

    def forget(self, port: int) -> None:
        """Let in no more connections from a port, before the caller frees it."""
        if port in self._ports:
            self._ports.remove(port)
            self._set()

    def close(self) -> None:
        """Let in nobody ever again."""
        self._copy.close()

    def _set(self) -> None:
        code = program(self._ports)
        memory = ctypes.create_string_buffer(code, len(code))
        self._copy.setsockopt(
            socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", len(code) // 8, ctypes.addressof(memory))
        )


def program(ports: list[int]) -> bytes:
    """The filter: classic BPF, which passes packets that come from one of `ports` of 127.0.0.1, and drops all others."""
    lines = [
        (_LOAD_WORD, 0, 0, (_IP_HEADER + _SENDER_IN_IP) & 0xFFFFFFFF),
        (_EQUALS, 1, 0, _LOOPBACK),
        (_RETURN, 0, 0, 0),
    ]
    lines += [(_LOAD_HALF, 0, 0, _PORT_IN_TCP)]
    for port in ports:
        lines += [(_EQUALS, 0, 1, port), (_RETURN, 0, 0, 0xFFFFFFFF)]
    lines += [(_RETURN, 0, 0, 0)]
    return b"".join(struct.pack("HBBI", *line) for line in lines)
