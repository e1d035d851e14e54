"""What processes have done since they began: processor time, bytes, data that woke them up.

Threads that lockstep runs inside a rank name themselves (`name_own_thread`) and are left out: they work beside the script.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from platform import machine

from lockstep.machine.leftovers import PROC
from lockstep.machine.process_state import TICK_S, sleeps_of

OWN = "lockstep:"
"""How the kernel's names of lockstep's own threads begin."""
MOVES_DATA = {
    "x86_64": {0, 1, 17, 18, 19, 20, 40, 43, 44, 45, 46, 47, 288, 326},
    "aarch64": {63, 64, 65, 66, 67, 68, 71, 202, 206, 207, 211, 212, 242, 285},
}.get(machine(), set())
"""The numbers of the kernel's calls that read and write: read, write, readv, recvfrom, sendto, accept and their kind."""


@dataclass(frozen=True)
class Effort:
    """Counters that grow, all threads and children added up; a child that has ended counts once it was waited for."""

    processor_s: float = 0.0
    file_bytes: int = 0
    """Read and written by `read` and `write`: files, pipes, some sockets."""
    wakes: Mapping[int, int] = field(default_factory=dict)
    """How often each thread has fallen asleep that is in a read or write now: it wakes up when data comes or goes."""


def name_own_thread(name: str, proc: Path = PROC) -> None:
    """Give the calling thread a name by which `effort` knows that it is lockstep's; at most 6 letters."""
    with suppress(OSError):
        (proc / "thread-self" / "comm").write_text(OWN + name)


def effort(pids: Iterable[int], proc: Path = PROC) -> Effort:
    """The counters of these processes together; what the kernel does not tell counts as nothing."""
    processor_s, file_bytes, wakes = 0.0, 0, dict[int, int]()
    for each in pids:
        processor_s += _processor_s(proc / str(each), with_children=True)
        file_bytes += _file_bytes(proc / str(each))
        for thread in _threads(proc / str(each)):
            if _read(thread / "comm").startswith(OWN):
                processor_s -= _processor_s(thread)
                file_bytes -= _file_bytes(thread)
            elif _moves_data(thread):
                wakes[int(thread.name)] = sleeps_of(int(thread.name), thread.parent)
    return Effort(processor_s, file_bytes, wakes)


def _threads(process: Path) -> list[Path]:
    with suppress(OSError):
        return list((process / "task").iterdir())
    return []


def _processor_s(folder: Path, *, with_children: bool = False) -> float:
    with suppress(ValueError, IndexError):
        fields = _read(folder / "stat").rpartition(")")[2].split()
        return sum(map(int, fields[11 : 15 if with_children else 13])) * TICK_S
    return 0.0


def _file_bytes(folder: Path) -> int:
    with suppress(ValueError):
        counts = dict(line.split(": ") for line in _read(folder / "io").splitlines())
        return int(counts.get("rchar", 0)) + int(counts.get("wchar", 0))
    return 0


def _moves_data(thread: Path) -> bool:
    number = _read(thread / "syscall").partition(" ")[0].strip()
    return number.isdigit() and int(number) in MOVES_DATA


def _read(file: Path) -> str:
    with suppress(OSError):
        return file.read_text(errors="replace")
    return ""


# How many bytes processes have sent and received over their TCP connections: the kernel's own counters, asked by netlink
# (`sock_diag`, as `ss -ti` does), which needs no permission and stops nobody.

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
