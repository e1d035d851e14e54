"""`host:port` of node 0, as torchrun writes it: an IPv6 address stands in brackets."""

from __future__ import annotations

import ipaddress
import re

from lockstep.errors import UsageError
from lockstep.visible import visible

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
