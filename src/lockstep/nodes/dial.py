"""How a node reaches the gate, and what is said when it cannot: one sentence that names the place and the fix.

That nobody listens yet is usual, since nodes start in any order; that nothing answers at all is not waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

from lockstep.errors import LockstepError, UsageError, WorldError
from lockstep.nodes.address import Place, is_loopback
from lockstep.nodes.greeting import read_line, secured, send_line
from lockstep.nodes.key import Key
from lockstep.nodes.munge import ASKS_FOR_SEAL, LONGEST_SEAL, unseal
from lockstep.nodes.pair import close_now

ANSWER_S = 4.0
"""How long one attempt waits for an answer."""
_AGAIN_S = 0.05
T = TypeVar("T")


class NotYet(WorldError):  # noqa: N818 - a state of the world
    """The machine answers, but no process listens there, or it broke off at once: node 0 begins, or has ended."""


class Silent(NotYet):
    """Something listens there and says nothing: node 0 begins slowly, or it is something else."""


class Unreachable(WorldError):  # noqa: N818 - a state of the world
    """No way leads there: a person's mistake when a run begins, the world's when it goes on."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{problem} {fix}")
        self.problem, self.fix = problem, fix


async def patient(attempt: Callable[[], Awaitable[T]], patience_s: float, over: type[LockstepError]) -> T:
    """What `attempt` gives, tried again for `patience_s` while it fails as `over` says; then raise what it raised last."""
    loop = asyncio.get_running_loop()
    until = loop.time() + patience_s
    while True:
        try:
            return await attempt()
        except over:
            if loop.time() >= until:
                raise
        await asyncio.sleep(_AGAIN_S)


async def dial(place: Place, context: ssl.SSLContext, hello: dict[str, Any]) -> ssl.SSLSocket:
    """Open a connection through the gate.

    Raises:
        NotYet: no process listens there, or it broke off.
        UsageError: this node has another key; or what listens there is no gate; or node 0 itself does not take part.
        WorldError: anything else that kept it from opening.
    """
    plain = await connected(place)
    with _explained(place, is_connected=True):
        async with asyncio.timeout(ANSWER_S):
            tls = await secured(plain, context, is_gate=False)
            try:
                await send_line(tls, hello)
                answer = await read_line(tls)
            except BaseException:
                close_now(tls)
                raise
    if answer.get("ok") is not True:
        close_now(tls)
        if "problem" in answer:
            raise UsageError(str(answer["problem"]), str(answer["fix"]))
        raise UsageError(
            f"Node 0 at {place} does not let this node in: it was given up before, or has another version of lockstep.",
            "Start the same version on all nodes.",
        )
    return tls


async def connected(place: Place) -> socket.socket:
    """Connect, without TLS. Raises like `dial`."""
    with _explained(place, is_connected=False):
        plain = socket.socket(socket.AF_INET6 if ":" in place.address else socket.AF_INET, socket.SOCK_STREAM)
        try:
            plain.setblocking(False)
            if place.source:
                plain.bind((place.source, 0))
            async with asyncio.timeout(ANSWER_S):
                await asyncio.get_running_loop().sock_connect(plain, (place.address, place.port))
        except BaseException:
            close_now(plain)
            raise
    return plain


def key_of_job(place: Place, job: str, patience_s: float) -> Key:
    """Ask node 0 for the key of this job.

    Args:
        place: where the gate is.
        job: SLURM's job.
        patience_s: how long to try again while nobody listens there.

    Raises:
        NotYet, UsageError, WorldError: as `dial` and `lockstep.nodes.munge.unseal`.
    """
    return unseal(asyncio.run(patient(lambda: _asked(place), patience_s, NotYet)), job)


async def _asked(place: Place) -> bytes:
    plain, loop, sealed = await connected(place), asyncio.get_running_loop(), b""
    try:
        async with asyncio.timeout(ANSWER_S):
            await loop.sock_sendall(plain, ASKS_FOR_SEAL)
            while len(sealed) < LONGEST_SEAL and (piece := await loop.sock_recv(plain, LONGEST_SEAL)):
                sealed += piece
    except TimeoutError as error:  # a gate that begins is asked again
        raise why_not(error, place, is_connected=True) from None
    except OSError:
        sealed = b""
    finally:
        close_now(plain)
    if not sealed:
        raise WorldError(
            f"Node 0 at {place} gives no key sealed with munge: look at what it says, or give all nodes the same --key-file."
        )
    return sealed


@contextlib.contextmanager
def _explained(place: Place, *, is_connected: bool) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise why_not(error, place, is_connected=is_connected) from None


def why_not(error: Exception, place: Place, *, is_connected: bool) -> LockstepError:
    """What to say when a connection could not be opened.

    Args:
        error: what was raised.
        place: where to.
        is_connected: whether it came after TCP had connected.
    """
    if is_connected:
        return _why_not_let_in(error, place)
    number = getattr(error, "errno", None)
    if isinstance(error, ConnectionRefusedError):
        if is_loopback(place.address):
            return NotYet(
                f"Nobody listens at {place}, which is this machine alone: start node 0 here, or name its address in --rdzv-endpoint."
            )
        return NotYet(f"Nobody listens at {place}: start node 0 there, or correct --rdzv-endpoint.")
    if isinstance(error, TimeoutError):
        return Unreachable(
            f"Nothing answers at {place}: the machine is down, or a firewall drops what is sent to this port.",
            "Open the port between the nodes, or correct --rdzv-endpoint.",
        )
    if number == errno.EADDRNOTAVAIL and place.source:
        return UsageError(
            f"{place.source} is not an address of this machine.",
            "Name an address or interface of this machine with --local-addr.",
        )
    reason = os.strerror(number) if number else error
    return Unreachable(
        f"{place} cannot be reached from this machine ({reason}).", "Correct --rdzv-endpoint or --local-addr."
    )


def _why_not_let_in(error: Exception, place: Place) -> LockstepError:
    if isinstance(error, ssl.SSLCertVerificationError):
        return UsageError(
            f"This node's key is not that of node 0 at {place}.",
            "Give every node the same key: the line that node 0 printed, the same --key-file, or the same LOCKSTEP_KEY.",
        )
    if isinstance(error, TimeoutError):
        return Silent(
            f"What listens at {place} does not answer: node 0 still begins, is stopped, or another program has this port."
        )
    if isinstance(error, ConnectionError | ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return NotYet(f"Node 0 at {place} broke off before the connection was open: look at what it says.")
    return UsageError(
        f"What listens at {place} is not node 0 of a run of lockstep.",
        "Choose another port with --rdzv-endpoint on all nodes.",
    )
