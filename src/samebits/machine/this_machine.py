"""What this machine is called, from which address it reaches another one, and what is above this process in it."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Collection, Iterator
from pathlib import Path

BOOT_ID = "/proc/sys/kernel/random/boot_id"
MACHINE_ID = "/etc/machine-id"


def machine_and_start(boot_id: str = BOOT_ID, machine_id: str = MACHINE_ID) -> str:
    """The kernel's own number for this start; where it is hidden (`subset=pid` on /proc, some sandboxes) the host's name
    and number, which no two nodes of a run share.
    """
    return _read(boot_id) or f"{os.uname().nodename} {_read(machine_id)}".strip()


def _read(path: str) -> str:
    try:
        with Path(path).open(encoding="ascii") as file:
            return file.read(100).strip()
    except (OSError, ValueError):
        return ""


_SIOCGIFADDR = 0x8915
"""From linux/sockios.h: the first IPv4 address of an interface."""


def address_towards(host: str, port: int) -> str:
    """The address of this machine from which packets to a host leave. Sends nothing.

    Raises:
        OSError: the name is unknown, or no way leads there.
    """
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as asking:
        # Connecting a datagram socket sends nothing; the kernel only chooses the way.
        asking.connect(place)
        return str(asking.getsockname()[0])


def interface_with(address: str) -> str:
    """The interface that has an IPv4 address as its first; empty if none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, request)
            except OSError:
                continue
            # struct ifreq: the name in 16 bytes, then a sockaddr_in with family, port and address.
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""


PROC = Path("/proc")


def ancestors(pid: int, proc: Path = PROC) -> Iterator[tuple[int, str]]:
    """Number and name of every process above `pid`, the nearest first; names are cut to 15 characters by Linux."""
    while pid > 1:
        try:
            fields = (proc / str(pid) / "stat").read_text(errors="replace").rpartition(") ")[2].split()
            pid = int(fields[1])
            if pid < 1:
                return
            name = (proc / str(pid) / "comm").read_text(errors="replace").rstrip("\n")
        # It has just ended, or is hidden.
        except (OSError, ValueError, IndexError):
            return
        yield pid, name


def nearest(names: Collection[str], pid: int | None = None, proc: Path = PROC) -> int | None:
    """The nearest ancestor with one of these names; None if there is none, or it is in another namespace."""
    here = os.getpid() if pid is None else pid
    return next((above for above, name in ancestors(here, proc) if name in names), None)
