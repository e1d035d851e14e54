"""How many bytes processes have sent and received over their TCP connections, from the kernel's own counters.

Asked by netlink (`sock_diag`, as `ss -ti` does), which needs no permission and stops nobody.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
REQUEST_DUMP = 0x301
ERROR, DONE = 2, 3
ESTABLISHED, CLOSE_WAIT = 1 << 1, 1 << 8
TCP_INFO = 2
HEADER = struct.Struct("=IHHII")
QUESTION = struct.Struct("=BBBBI48s")
"""struct inet_diag_req_v2: family, protocol, what else to tell, -, states, one socket's name (none)."""
INODE_AT, ANSWER_BYTES = 68, 72
"""In struct inet_diag_msg."""
ATTRIBUTE = struct.Struct("=HH")
COUNTERS, COUNTERS_AT = struct.Struct("=QQ"), 120
"""In struct tcp_info: bytes that the other side has acknowledged, and bytes received."""
PATIENCE_S = 1.0


def socket_bytes(pids: Iterable[int]) -> int | None:
    """The sum over the connections that these processes have now; None if the kernel does not tell."""
    own = set[int]().union(*map(_sockets_of, pids))
    if not own:
        return 0
    try:
        return sum(
            sum(counts)
            for family in (socket.AF_INET, socket.AF_INET6)
            for inode, counts in _connections(family)
            if inode in own
        )
    except (OSError, struct.error):
        return None


def _sockets_of(pid: int) -> set[int]:
    """The inodes of the sockets of a process, of any kind."""
    found = set()
    with suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                name = file.readlink().name
                if name.startswith("socket:["):
                    found.add(int(name[len("socket:[") : -1]))
    return found


def _connections(family: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """The inode and the counters of each TCP connection of this machine, in this network namespace. Raises OSError."""
    asked = QUESTION.pack(family, socket.IPPROTO_TCP, 1 << TCP_INFO - 1, 0, ESTABLISHED | CLOSE_WAIT, bytes(48))
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_SOCK_DIAG) as link:
        link.settimeout(PATIENCE_S)
        link.send(HEADER.pack(HEADER.size + len(asked), SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, 1, 0) + asked)
        while True:
            data, at = link.recv(1 << 16), 0
            while at < len(data):
                size, kind, *_ = HEADER.unpack_from(data, at)
                if kind == DONE:
                    return
                if kind == ERROR:
                    raise OSError("the kernel does not list connections")
                yield from _connection(data[at + HEADER.size : at + size])
                at += _aligned(size)


def _connection(answer: bytes) -> Iterator[tuple[int, tuple[int, int]]]:
    (inode,) = struct.unpack_from("=I", answer, INODE_AT)
    at = ANSWER_BYTES
    while at + ATTRIBUTE.size <= len(answer):
        size, kind = ATTRIBUTE.unpack_from(answer, at)
        if kind == TCP_INFO and size >= ATTRIBUTE.size + COUNTERS_AT + COUNTERS.size:
            yield inode, COUNTERS.unpack_from(answer, at + ATTRIBUTE.size + COUNTERS_AT)
        at += max(_aligned(size), ATTRIBUTE.size)


def _aligned(size: int) -> int:
    return (size + 3) & ~3
