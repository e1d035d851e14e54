"""The one address on which node 0 listens, and the interface by which this node reaches the others: from `host:port`, as torchrun writes it. Pure."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from samebits.errors import UsageError
from samebits.machine.visible import visible

DEFAULT_PORT = 29400
"""In messages; torch's own for a rendezvous."""
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_.])?")


def split(endpoint: str, option: str = "--rdzv-endpoint") -> tuple[str, int]:
    """Host and port.

    Raises:
        UsageError: without a port, or with a host or port that cannot be.
    """
    text = endpoint.strip()
    if is_address(text) and ":" in text:
        text = f"[{text}]"
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, ""
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not (is_address(bare) and ":" in bare if bare != host else _HOST.fullmatch(host)):
        raise UsageError(
            f"{option} {visible(endpoint) or '(empty)'} names no host.",
            f"Give node 0's name or address: {option} host0:{DEFAULT_PORT}, an IPv6 address in brackets.",
        )
    if not port:
        raise UsageError(
            f"{option} {visible(endpoint)} has no port.", f"Give {option} {host}:{DEFAULT_PORT}, on all nodes."
        )
    return bare, port_number(port, f"the port of {option} {visible(endpoint)}")


def port_number(text: str, what: str) -> int:
    """A port that all nodes can know, which 0 is not.

    Raises:
        UsageError: for anything else; `what` begins its sentence.
    """
    if not re.fullmatch("[0-9]{1,5}", text) or not 0 < int(text) < 1 << 16:
        raise UsageError(
            f"{what[0].upper()}{what[1:]} must be a number from 1 to 65535.",
            f"Give all nodes the same, such as {DEFAULT_PORT}.",
        )
    return int(text)


def joined(host: str, port: int) -> str:
    """The other way round; an IPv6 address gets its brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_address(text: str) -> bool:
    """Whether it is an address in numbers."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def is_name(text: str) -> bool:
    """Whether it can be the name of a host."""
    return not is_address(text) and bool(_HOST.fullmatch(text))


@dataclass(frozen=True)
class Endpoint:
    """Where node 0 is, as a user or a scheduler names it."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Read `host:port` or `[IPv6]:port`. Raises UsageError."""
        return cls(*split(text))

    @property
    def is_loopback_by_intent(self) -> bool:
        """Whether it names the loopback interface, instead of a host that happens to resolve to it."""
        return self.host == "localhost" or is_loopback(self.host)


@dataclass(frozen=True)
class ListenAddress:
    """Where node 0 listens: an address in numbers, and a port; and the address of this machine to come from, if it matters."""

    address: str
    port: int
    source: str = ""

    def __str__(self) -> str:
        return joined(self.address, self.port)


@dataclass(frozen=True)
class Interface:
    """An interface with one of its addresses."""

    name: str
    address: str

    def __str__(self) -> str:
        return f"{self.address} ({self.name})"


@dataclass(frozen=True)
class View:
    """What this machine knows: the decision needs nothing else."""

    own: tuple[Interface, ...]
    resolved: tuple[str, ...]
    """The endpoint's addresses."""
    sources: tuple[str, ...] = ()
    """From which own address the kernel would send to each of them; empty where no route leads."""
    local: tuple[str, ...] = ()
    """The addresses of `--local-addr`, where that is a name."""
    to_others: tuple[str, ...] = ()
    """The own addresses that lead to the other nodes, where a launcher names them."""


@dataclass(frozen=True)
class Choice:
    """The address that this node uses, and where node 0 listens."""

    own: Interface
    """For GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME: its name."""
    gate: ListenAddress
    meant: tuple[str, ...] = field(default=(), compare=False)
    """The addresses by which others may mean node 0."""


def choose(endpoint: Endpoint, view: View, *, local: str | None, is_first: bool, are_elsewhere: bool | None) -> Choice:
    """Decide.

    Args:
        endpoint: where node 0 is.
        view: what this machine knows.
        local: `--local-addr`.
        is_first: whether this is node 0.
        are_elsewhere: whether nodes of this run are on other machines; None when nobody knows.

    Raises:
        UsageError: when no address of this machine can be right.
    """
    targets = _reachable(endpoint, view, is_first=is_first, are_elsewhere=are_elsewhere)
    own = _asked(local, view, targets) if local is not None else _usual(endpoint, view, targets, is_first=is_first)
    if is_loopback(own.address) and (are_elsewhere or not is_loopback(targets[0])):
        raise UsageError(
            f"Nodes on other machines cannot reach {own}.", f"Name another address with --local-addr: {_listed(view)}."
        )
    if is_first:
        return Choice(own, ListenAddress(own.address, endpoint.port), view.resolved)
    target = next((target for target in targets if family(target) == family(own.address)), targets[0])
    source = own.address if local is not None and family(target) == family(own.address) else ""
    return Choice(own, ListenAddress(target, endpoint.port, source))


def _reachable(endpoint: Endpoint, view: View, *, is_first: bool, are_elsewhere: bool | None) -> list[str]:
    """The endpoint's addresses that other machines could mean too, IPv4 first."""
    found = sorted(view.resolved, key=family)
    targets = [address for address in found if not is_loopback(address)]
    if targets:
        return targets
    if is_first and (leading := [address for address in view.to_others if not is_loopback(address)]):
        # Debian's /etc/hosts gives a machine's own name 127.0.1.1; the way to the others is known better.
        return leading
    if are_elsewhere is False or (are_elsewhere is None and endpoint.is_loopback_by_intent):
        return found
    fix = f"Name an address of node 0 in --rdzv-endpoint{f': {_listed(view)}' if is_first else ''}."
    if endpoint.is_loopback_by_intent:
        raise UsageError(
            f"{endpoint.host} in --rdzv-endpoint is each machine itself, and nodes are on other machines.", fix
        )
    raise UsageError(
        f"On this machine {endpoint.host} is {found[0]} (see /etc/hosts), which no other machine can reach.", fix
    )


def _asked(local: str, view: View, targets: Sequence[str]) -> Interface:
    """The address that `--local-addr` names, as address, interface or host, of the endpoint's kind if there are two."""
    named = [own for own in view.own if local in (own.name, own.address) or own.address in view.local]
    if not named:
        raise UsageError(
            f"{local!r} in --local-addr is neither an address nor an interface of this machine.",
            f"Use one of {_listed(view)}.",
        )
    fitting = [own for own in named if family(own.address) == family(targets[0])]
    return (fitting or named)[0]


def _usual(endpoint: Endpoint, view: View, targets: Sequence[str], *, is_first: bool) -> Interface:
    """The endpoint's own address on node 0, the one that leads there elsewhere."""
    if is_first:
        here = [own for target in targets for own in view.own if own.address == target]
        if not here:
            raise UsageError(
                f"{endpoint.host} in --rdzv-endpoint is {targets[0]}, which is not an address of this machine, and this is node 0.",
                f"Start node 0 there, or name the address to listen on with --local-addr: {_listed(view)}.",
            )
        return here[0]
    sources = dict(zip(view.resolved, view.sources, strict=False))
    leading = [own for target in targets for own in view.own if own.address == sources.get(target)]
    if not leading:
        raise UsageError(
            f"No interface of this machine leads to {endpoint.host} ({targets[0]}).",
            f"Name another host in --rdzv-endpoint, or an address of this machine with --local-addr: {_listed(view)}.",
        )
    return leading[0]


def _listed(view: View) -> str:
    """The addresses that a user could name, loopback last."""
    return ", ".join(map(str, sorted(view.own, key=lambda own: is_loopback(own.address))))


def is_loopback(text: str) -> bool:
    """Whether it is an address of the machine itself alone."""
    return is_address(text) and ipaddress.ip_address(text).is_loopback


def family(address: str) -> socket.AddressFamily:
    """As sockets need it; IPv4 comes first in their order."""
    return socket.AF_INET if ipaddress.ip_address(address).version == 4 else socket.AF_INET6
