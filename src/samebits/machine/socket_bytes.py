"""What the kernel knows of the TCP connections of processes: bytes that were sent and received, and whether the other side answers.

Asked by netlink (`sock_diag`, as `ss -ti` does), which needs no permission and stops nobody.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
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
PEER_AT, INODE_AT, ANSWER_BYTES = 24, 68, 72
"""In struct inet_diag_msg."""
ATTRIBUTE = struct.Struct("=HH")
COUNTERS, COUNTERS_AT = struct.Struct("=QQ"), 120
"""In struct tcp_info: bytes that the other side has acknowledged, and bytes received."""
RETRANSMITS_AT, PROBES_AT, RECEIVED_AT, SENT_AGAIN_AT, SENT_AT = 2, 3, 52, 100, 156
"""In struct tcp_info: what was sent again, or probed without an answer; milliseconds since data came; packets sent again, and sent, so far."""
MAPPED = bytes(10) + b"\xff\xff"
"""An IPv4 address as a socket of IPv6 has it begins so."""
PATIENCE_S = 1.0


@dataclass(frozen=True)
class Connection:
    """A TCP connection, as the kernel knows it."""

    inode: int
    peer: bytes
    """The other side's address, four bytes or sixteen."""
    moved_bytes: int
    """Acknowledged by the other side, and received."""
    is_unanswered: bool
    """Whether what was sent is sent again since nobody acknowledges it."""
    quiet_s: float
    """Since data came."""
    sent: int = 0
    """Packets with data, so far, those sent again included."""
    sent_again: int = 0


def socket_bytes(pids: Iterable[int]) -> int | None:
    """The sum over the connections that these processes have now; None if the kernel does not tell."""
    found = connections(pids)
    return None if found is None else sum(one.moved_bytes for one in found)


def connections(pids: Iterable[int]) -> list[Connection] | None:
    """The connections that these processes have now; None if the kernel does not tell."""
    own = set[int]().union(*map(_sockets_of, pids))
    if not own:
        return []
    try:
        return [one for family in (socket.AF_INET, socket.AF_INET6) for one in _connections(family) if one.inode in own]
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


def _connections(family: int) -> Iterator[Connection]:
    """Each TCP connection of this machine, in this network namespace. Raises OSError."""
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
                yield from _connection(family, data[at + HEADER.size : at + size])
                # Netlink pads its messages, and attributes in them, to four bytes.
                at += _aligned(size)


def _connection(family: int, answer: bytes) -> Iterator[Connection]:
    (inode,) = struct.unpack_from("=I", answer, INODE_AT)
    peer = answer[PEER_AT : PEER_AT + (4 if family == socket.AF_INET else 16)].removeprefix(MAPPED)
    at = ANSWER_BYTES
    while at + ATTRIBUTE.size <= len(answer):
        size, kind = ATTRIBUTE.unpack_from(answer, at)
        if kind == TCP_INFO and size >= ATTRIBUTE.size + SENT_AT + 4:
            info = answer[at + ATTRIBUTE.size :]
            moved = sum(COUNTERS.unpack_from(info, COUNTERS_AT))
            is_unanswered = info[RETRANSMITS_AT] > 0 or info[PROBES_AT] > 1
            quiet_ms, again, sent = (
                struct.unpack_from("=I", info, at)[0] for at in (RECEIVED_AT, SENT_AGAIN_AT, SENT_AT)
            )
            yield Connection(inode, peer, moved, is_unanswered, quiet_ms / 1000, sent, again)
        # An attribute without a size must not let this loop for ever.
        at += max(_aligned(size), ATTRIBUTE.size)


def _aligned(size: int) -> int:
    return (size + 3) & ~3
