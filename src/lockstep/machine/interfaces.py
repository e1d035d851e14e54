"""This machine's addresses: which of them leads to another host, and on which network interface it is."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915
"""From linux/sockios.h: the first IPv4 address of an interface."""


def address_towards(host: str, port: int) -> str:
    """The address of this machine from which packets to a host leave. Sends nothing.

    Raises:
        OSError: the name is unknown, or no way leads there.
    """
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as asking:
        asking.connect(place)
        return str(asking.getsockname()[0])


def interface_with(address: str) -> str:
    """The interface that has an IPv4 address as its first; empty if none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, request)
            except OSError:  # it has none
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""
