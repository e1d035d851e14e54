"""How a connection between two nodes begins: TLS with the run's identity, then one line of JSON each way.

tunnel:  {"lockstep": 1, "node": "...", "purpose": "store", ...}
gate:    {"ok": true}, or {"ok": false} and perhaps why

Nothing is handed on before both lines were read, so a connection that breaks off earlier can be made again unnoticed.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

from lockstep.nodes.pair import close_now

LONGEST_LINE = 1 << 14
VERSION = 1
LET_IN, KEPT_OUT = b'{"ok": true}\n', b'{"ok": false}\n'
"""What the gate says."""
T = TypeVar("T")


class Purpose(StrEnum):
    """What a connection is for."""

    STORE = "store"
    """Its bytes go to the store behind the gate."""
    PULSE = "pulse"
    """It says that its node is alive: the gate sends back what comes."""
    WITHDRAWAL = "withdrawal"
    """It says only why its node does not take part."""


async def secured(plain: socket.socket, context: ssl.SSLContext, *, is_gate: bool) -> ssl.SSLSocket:
    """Shake hands over a connected socket that does not block; it is taken over, and closed when that fails.

    Raises:
        ssl.SSLError: the other side has another key, or speaks something else.
        OSError: the connection broke off.
    """
    try:
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = context.wrap_socket(plain, server_side=is_gate, do_handshake_on_connect=False)
    except BaseException:
        close_now(plain)
        raise
    try:
        await patiently(tls, tls.do_handshake)
    except BaseException:
        close_now(tls)
        raise
    return tls


def line(told: dict[str, Any]) -> bytes:
    """One line of JSON."""
    return json.dumps(told).encode() + b"\n"


async def send_line(tls: ssl.SSLSocket, told: dict[str, Any]) -> None:
    """Send one line; it fits the socket's memory at the beginning of a connection."""
    await patiently(tls, lambda: tls.send(line(told)))


async def read_line(tls: ssl.SSLSocket) -> dict[str, Any]:
    """Read one line, the first of a connection: the other side waits for ours before it sends more.

    Raises:
        ConnectionError: it ended before the line did.
        ValueError: what came is not one line with a JSON object.
    """
    read = b""
    while not read.endswith(b"\n"):
        piece = await patiently(tls, lambda: tls.recv(LONGEST_LINE))
        if not piece:
            raise ConnectionAbortedError("the connection ended before it began")
        read += piece
        if len(read) > LONGEST_LINE:
            raise ValueError("a line that is too long")
    told = json.loads(read)
    if not isinstance(told, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - of the other side
    return told


async def patiently(tls: ssl.SSLSocket, act: Callable[[], T]) -> T:
    """Do something with a TLS socket that does not block, as soon as that is possible."""
    while True:
        try:
            return act()
        except ssl.SSLWantReadError:
            await ready(tls, to_write=False)
        except ssl.SSLWantWriteError:
            await ready(tls, to_write=True)


async def ready(end: socket.socket, *, to_write: bool) -> None:
    """Wait until a socket can be read from or written to."""
    loop = asyncio.get_running_loop()
    is_ready = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if to_write else (loop.add_reader, loop.remove_reader)
    add(end, lambda: None if is_ready.done() else is_ready.set_result(None))
    try:
        await is_ready
    finally:
        remove(end)
