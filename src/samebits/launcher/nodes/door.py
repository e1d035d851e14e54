"""Whose process connects to a port on this machine, and a lock for the port of torchrun's store: it takes connections of the star only.

Linux lists the owners of all TCP sockets in /proc/net/tcp and tcp6; reading them takes milliseconds.

torchrun's store accepts by itself and asks nobody who calls. So the kernel asks: a packet filter on the listening socket drops
whatever does not come from a port that the star holds, before a connection exists. The star binds a port, lets it in, and connects
from it; nobody else can send from a port that is bound. A connection keeps the filter with which it began, so only ports of
connections that begin have to be listed. It needs no rights.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import sys
from pathlib import Path

from samebits.errors import EnvironmentFailure

Address = tuple[str, int]
_TABLES = (Path("/proc/net/tcp6"), Path("/proc/net/tcp"))
_CONNECTED = frozenset((b"01", b"08"))
"""Established, and ended by the other side only: a process still holds the socket."""
_MAPPED = bytes(10) + b"\xff\xff"
"""An IPv4 address as a socket of IPv6 has it begins so; those of a c10d client do."""


def is_own_process(connection: socket.socket) -> bool:
    """Whether the other end of an IPv4 connection within this machine belongs to a process of our user.

    An end that nobody holds any more counts as another user's.
    """
    # The kernel forgets the owner of such an end, and lists root in its place (`owner` looks at the inode).
    peer, own = connection.getpeername(), connection.getsockname()
    return any(owner(table.read_bytes(), peer, own) == os.geteuid() for table in _TABLES if table.exists())


def other_users(port: Address) -> list[int]:
    """The other users who are connected to a port of 127.0.0.1 on this machine."""
    table = b"".join(table.read_bytes() for table in _TABLES if table.exists())
    rows = [line.split() for line in table.splitlines()]
    remotes = {_coded(port, is_mapped=is_mapped) for is_mapped in (False, True)}
    found = {int(row[7]) for row in rows if row[2] in remotes and row[3] in _CONNECTED}
    return sorted(found - {os.geteuid()})


def owner(table: bytes, local: Address, remote: Address) -> int | None:
    """The user of the socket at `local` that is connected to `remote`; None when the table has none that a process holds."""
    for is_mapped in (False, True):
        wanted = [_coded(address, is_mapped=is_mapped) for address in (local, remote)]
        start = table.find(b" %b %b " % (wanted[0], wanted[1]))
        fields = table[start:].split(b"\n", 1)[0].split() if start >= 0 else []
        if fields and fields[2] in _CONNECTED and fields[8] != b"0":
            return int(fields[6])
    return None


def _coded(address: Address, *, is_mapped: bool) -> bytes:
    """An address as the table has it: words of 32 bits in hexadecimal, each as this processor lays out numbers."""
    host = (_MAPPED if is_mapped else b"") + socket.inet_aton(address[0])
    words = (int.from_bytes(host[at : at + 4], sys.byteorder) for at in range(0, len(host), 4))
    return b"".join(b"%08X" % word for word in words) + b":%04X" % address[1]


MOST_LISTED = 256
_SO_ATTACH_FILTER = 26
_LOAD_HALF, _LOAD_WORD, _EQUALS, _RETURN = 0x28, 0x20, 0x15, 0x06
_IP_HEADER, _SENDER_IN_IP, _PORT_IN_TCP = -0x100000, 12, 0
"""Offsets: where the filter finds the header of IP, the sender in it, and the sender's port in that of TCP."""
_LOOPBACK = 0x7F000001


class Door:
    """Who may connect to a listening socket on 127.0.0.1."""

    def __init__(self, listener: socket.socket) -> None:
        """Lock it for everybody. Existing connections stay open.

        Args:
            listener: listens on 127.0.0.1; it is used through a copy, and may be handed to whoever accepts.

        Raises:
            EnvironmentFailure: the kernel has no such filters, or a process of another user is connected already.
        """
        self._copy = listener.dup()
        self._ports: list[int] = []
        try:
            self._set()
        except OSError as error:
            self._copy.close()
            raise EnvironmentFailure(
                f"This kernel cannot lock the store's port ({os.strerror(error.errno or 0)})."
            ) from None
        # The lock came after `listen`: somebody may have connected in between, and stays connected.
        if users := other_users(listener.getsockname()):
            self._copy.close()
            raise EnvironmentFailure(
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
