"""Whose process connects to a port on this machine.

Linux answers for one TCP socket over netlink (sock_diag(7)) within microseconds, where that is built in. It lists all of them in
/proc/net/tcp and tcp6 everywhere, which takes milliseconds.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from pathlib import Path

Address = tuple[str, int]
_SOCK_DIAG, _BY_FAMILY, _REQUEST, _ANY_COOKIE = 4, 20, 1, (0xFFFFFFFF, 0xFFFFFFFF)
_TABLES = (Path("/proc/net/tcp6"), Path("/proc/net/tcp"))
_CONNECTED = frozenset((b"01", b"08"))
"""Established, and ended by the other side only: a process still holds the socket."""
_MAPPED = bytes(10) + b"\xff\xff"
"""An IPv4 address as a socket of IPv6 has it begins so; those of a c10d client do."""


def is_own_process(connection: socket.socket) -> bool:
    """Whether the other end of an IPv4 connection within this machine belongs to a process of our user.

    An end that nobody holds any more counts as a stranger's: the kernel forgets its owner, and lists root in its place.
    """
    peer, own = connection.getpeername(), connection.getsockname()
    asked = answered_owner(peer, own)
    if asked is not None:
        return asked == os.geteuid()
    return any(owner(table.read_bytes(), peer, own) == os.geteuid() for table in _TABLES if table.exists())


def answered_owner(local: Address, remote: Address) -> int | None:
    """What netlink says of the socket at `local` that is connected to `remote`, as `owner`; None where it does not answer too."""
    place = struct.pack(">HH16s16s", local[1], remote[1], socket.inet_aton(local[0]), socket.inet_aton(remote[0]))
    wanted = (
        struct.pack("=BBBxI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0xFFFFFFFF)
        + place
        + struct.pack("=III", 0, *_ANY_COOKIE)
    )
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
            kernel.settimeout(1)
            kernel.sendto(struct.pack("=IHHII", 16 + len(wanted), _BY_FAMILY, _REQUEST, 0, 0) + wanted, (0, 0))
            answer = kernel.recv(4096)
    except OSError:
        return None
    if struct.unpack_from("=H", answer, 4)[0] != _BY_FAMILY:  # an error
        return None
    state = answer[17]
    user, inode = struct.unpack_from("=II", answer, 80)
    return int(user) if state in (1, 8) and inode else None


def strangers(port: Address) -> list[int]:
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
