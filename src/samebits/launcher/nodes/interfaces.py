"""What this machine knows of its addresses and of the endpoint, and the socket on which node 0 listens.

Runs in: the launcher's thread; a name is resolved in one of its own, named samebits-resolve.
"""

from __future__ import annotations

import array
import errno
import fcntl
import ipaddress
import os
import platform
import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from samebits.errors import EnvironmentFailure, SamebitsError, UsageError
from samebits.launcher.nodes.address import (
    DEFAULT_PORT,
    Choice,
    Endpoint,
    Interface,
    ListenAddress,
    View,
    choose,
    family,
    is_address,
    is_loopback,
    is_name,
)
from samebits.launcher.nodes.place import NodePlace

RESOLVE_S = 2.5
_BACKLOG = 256
_SIOCGIFCONF, _MOST_ADDRESSES, _IFREQ_BYTES = 0x8912, 1024, 40


def choose_here(place: NodePlace) -> tuple[Choice, bool]:
    """The addresses that count for this node, and whether it is the run's first.

    Raises:
        UsageError: when no address of this machine can be right.
    """
    endpoint = Endpoint.parse(place.endpoint or f"{platform.node()}:{DEFAULT_PORT}")
    view = look(endpoint, place.local or None)
    if place.number == 0 and place.hosts and all(map(is_loopback, view.resolved)):
        view = replace(view, to_others=_leading_to(place.hosts[1:]))
    own = {one.address for one in view.own}
    # Without a number, the node that has the endpoint's address is node 0.
    is_first = place.number == 0 if place.number is not None else bool(own & set(view.resolved))
    are_elsewhere = len(set(place.hosts)) > 1 if place.hosts else None
    return choose(endpoint, view, local=place.local or None, is_first=is_first, are_elsewhere=are_elsewhere), is_first


def _leading_to(hosts: Sequence[str]) -> tuple[str, ...]:
    """The own addresses from which the first of these hosts that has one is reached; empty where none has."""
    for host in hosts:
        try:
            return tuple(filter(None, map(source_to, resolve(host, "another node of the job"))))
        # Its name means nothing here: try the next one.
        except UsageError:
            continue
    return ()


def look(endpoint: Endpoint, local: str | None) -> View:
    """Ask this machine, for at most `RESOLVE_S` per name. Raises UsageError when the endpoint's host has no address."""
    own = own_addresses()
    resolved = resolve(endpoint.host, "the host in --rdzv-endpoint")
    is_known = local is None or any(local in (one.name, one.address) for one in own)
    addresses: tuple[str, ...] = ()
    if local is not None and not is_known and is_name(local):
        try:
            addresses = resolve(local, "--local-addr")
        except UsageError:
            # The refusal in `address` lists what there is.
            addresses = ()
    return View(own, resolved, tuple(map(source_to, resolved)), addresses)


def resolve(
    host: str, what: str, ask: Callable[..., Iterable[tuple[object, ...]]] = socket.getaddrinfo
) -> tuple[str, ...]:
    """The addresses of a host, each once. Raises UsageError, in time even when a name server does not answer."""
    if is_address(host):
        return (host,)
    answers: queue.SimpleQueue[Iterable[tuple[object, ...]] | OSError] = queue.SimpleQueue()

    def wait_for_it() -> None:
        try:
            answers.put(ask(host, None, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            answers.put(error if isinstance(error, OSError) else OSError(str(error)))

    threading.Thread(target=wait_for_it, daemon=True, name="samebits-resolve").start()
    try:
        answer = answers.get(timeout=RESOLVE_S)
    except queue.Empty:
        answer = OSError(0, f"no name server answered in {RESOLVE_S:g} s")
    if isinstance(answer, OSError):
        reason = answer.strerror or answer
        raise UsageError(
            f"{host}, {what}, has no address on this machine ({reason}).", "Use another name, or an address."
        )
    return tuple(dict.fromkeys(str(entry[4][0]) for entry in answer))  # type: ignore[index]


def source_to(address: str) -> str:
    """The own address that the kernel would send to `address` from; empty when no route leads there. Nothing is sent."""
    with socket.socket(family(address), socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def own_addresses() -> tuple[Interface, ...]:
    """The addresses of this machine, IPv4 first, without those that are valid on one cable only."""
    space = array.array("B", bytes(_MOST_ADDRESSES * _IFREQ_BYTES))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        asked = struct.pack("iP", len(space), space.buffer_info()[0])
        used = struct.unpack("iP", fcntl.ioctl(any_socket, _SIOCGIFCONF, asked))[0]
    found = []
    for at in range(0, used, _IFREQ_BYTES):
        name = bytes(space[at : at + 16]).split(b"\0", 1)[0].decode()
        found.append(Interface(name.split(":")[0], socket.inet_ntoa(bytes(space[at + 20 : at + 24]))))
    six = Path("/proc/net/if_inet6")
    for line in six.read_text().splitlines() if six.exists() else ():
        digits, *_, name = line.split()
        address = ipaddress.IPv6Address(bytes.fromhex(digits))
        if not address.is_link_local:
            found.append(Interface(name, str(address)))
    return tuple(found)


class PortTaken(UsageError):  # noqa: N818 - a state of the world as much as a mistake
    """Another process listens there."""


def listen(place: ListenAddress) -> socket.socket:
    """A socket that listens at one address. Raises UsageError or EnvironmentFailure in one sentence."""
    if not place.address or ipaddress.ip_address(place.address).is_unspecified:
        raise ValueError("node 0 listens on one named address")
    try:
        return socket.create_server((place.address, place.port), family=family(place.address), backlog=_BACKLOG)
    except OSError as error:
        raise _why_not_there(error, place) from None


def _why_not_there(error: OSError, place: ListenAddress) -> SamebitsError:
    if error.errno == errno.EADDRINUSE:
        return PortTaken(
            f"{place} is in use by another process.",
            "End it, or choose another port with --rdzv-endpoint on all nodes.",
        )
    if error.errno == errno.EACCES:
        return UsageError(
            f"Port {place.port} is reserved for root.", "Choose a port above 1023 with --rdzv-endpoint on all nodes."
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return UsageError(
            f"{place.address} is no longer an address of this machine.", "Name another with --local-addr."
        )
    return EnvironmentFailure(f"Cannot listen at {place}: {os.strerror(error.errno or 0)}.")
