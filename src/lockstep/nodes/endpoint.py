"""`host:port` of node 0, as torchrun writes it: an IPv6 address stands in brackets."""

from __future__ import annotations

import re

from lockstep.errors import UsageError
from lockstep.visible import visible

DEFAULT_PORT = 29400
"""In messages; torch's own for a rendezvous."""
_HOST = re.compile(r"[\w.:%-]+")


def split(endpoint: str, option: str = "--rdzv-endpoint") -> tuple[str, int]:
    """Host and port.

    Raises:
        UsageError: without a port, or with a host or port that cannot be.
    """
    text = endpoint.strip()
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]") or (":" in host and not host.startswith("[")):
        whole = f"[{text}]" if ":" in text and not text.startswith("[") else text
        raise UsageError(
            f"{option} {visible(endpoint)} has no port.",
            f"Give {option} {visible(whole)}:{DEFAULT_PORT}, on all nodes.",
        )
    host = host.removeprefix("[").removesuffix("]")
    if not _HOST.fullmatch(host):
        raise UsageError(
            f"{option} {visible(endpoint)} names no host.",
            f"Give node 0's name or address: {option} host0:{DEFAULT_PORT}.",
        )
    return host, port_number(port, f"the port of {option} {visible(endpoint)}")


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
