"""How a node calls node 0, and the error that is raised when it cannot.

That nobody listens yet is usual, since nodes start in any order; that nothing answers at all is not waited for.

Runs in: a thread of a launcher, named samebits-call.
"""

from __future__ import annotations

import errno
import os
import socket
import time

from samebits.errors import EnvironmentFailure, SamebitsError, UsageError
from samebits.launcher.nodes.address import ListenAddress, is_loopback
from samebits.launcher.nodes.key import LONGEST_SEAL, Key, unseal
from samebits.launcher.nodes.session import (
    ASKS_FOR_SEAL,
    GREETING_BYTES,
    MAGIC,
    PROOF_BYTES,
    CallerHello,
    HasNoKey,
    NotSamebits,
    WrongAddress,
    WrongKey,
    address_bytes,
    nonce_in,
)
from samebits.launcher.nodes.wire import Wire, WireEnded

ANSWER_S = 4.0
"""How long one attempt waits for an answer."""


class NotYet(EnvironmentFailure):
    """The machine answers, but no process listens there, or it broke off at once: node 0 begins, or has ended."""


class Silent(NotYet):
    """Something listens there and sends nothing: node 0 begins slowly, or it is something else."""


class Unreachable(EnvironmentFailure):
    """No way leads there: a user's mistake when a run begins, the network's failure later."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{problem} {fix}")
        self.problem, self.fix = problem, fix


def call(place: ListenAddress, key: Key, node: str) -> Wire:
    """Call node 0, and say which node calls. Takes a few times `ANSWER_S` at most.

    Raises:
        NotYet: no process listens there, or it broke off.
        UsageError: this node has another key, or what listens there is no node 0.
        Unreachable: no way leads there.
    """
    end = connected(place)
    try:
        hello = CallerHello(key.secret, address_bytes(place.address, place.port))
        greeting = _greeting(end)
        # `_greeting` has sent MAGIC already.
        end.sendall(hello.hello(greeting)[len(MAGIC) :])
        keys = hello.session(greeting, _exactly(end, PROOF_BYTES))
        wire = Wire.between_nodes(end, keys.from_caller, keys.from_host)
        wire.send({"node": node})
    except (OSError, ValueError, WireEnded) as error:
        end.close()
        raise why_rejected(error, place) from None
    return wire


def key_of_job(place: ListenAddress, job: str) -> Key:
    """Ask node 0 for the key of this job of SLURM. Raises as `call` and `samebits.launcher.nodes.key.unseal`."""
    end, sealed = connected(place), b""
    try:
        nonce_in(_greeting(end))
        end.sendall(ASKS_FOR_SEAL[len(MAGIC) :])
        while len(sealed) < LONGEST_SEAL and (piece := end.recv(LONGEST_SEAL)):
            sealed += piece
    # A node 0 that is still beginning is called again.
    except (TimeoutError, ValueError) as error:
        raise why_rejected(error, place) from None
    except OSError:
        sealed = b""
    finally:
        end.close()
    if not sealed:
        raise EnvironmentFailure(
            f"Node 0 at {place} gives no key sealed with munge: look at what it says, or give all nodes the same --key-file."
        )
    return unseal(sealed, job)


def connected(place: ListenAddress) -> socket.socket:
    """Connect, without a word. Raises like `call`."""
    try:
        return socket.create_connection(
            (place.address, place.port), ANSWER_S, (place.source, 0) if place.source else None
        )
    except OSError as error:
        raise why_not_connected(error, place) from None


def _greeting(end: socket.socket) -> bytes:
    """Node 0's first bytes. Raises OSError, NotSamebits."""
    end.sendall(MAGIC)
    begin = _exactly(end, len(MAGIC))
    return begin + (_exactly(end, GREETING_BYTES - len(MAGIC)) if begin == MAGIC else b"")


def _exactly(end: socket.socket, size: int) -> bytes:
    """So many bytes, within `ANSWER_S` in all. Raises OSError."""
    came, until = b"", time.monotonic() + ANSWER_S
    while len(came) < size:
        end.settimeout(max(until - time.monotonic(), 0.001))
        piece = end.recv(size - len(came))
        if not piece:
            raise ConnectionAbortedError("the connection ended before it began")
        came += piece
    return came


def why_not_connected(error: OSError, place: ListenAddress) -> SamebitsError:
    """What to say when TCP did not connect."""
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
    if error.errno == errno.EADDRNOTAVAIL and place.source:
        return UsageError(
            f"{place.source} is not an address of this machine.",
            "Name an address or interface of this machine with --local-addr.",
        )
    reason = os.strerror(error.errno) if error.errno else error
    return Unreachable(
        f"{place} cannot be reached from this machine ({reason}).", "Correct --rdzv-endpoint or --local-addr."
    )


_REJECTIONS: dict[type[Exception], tuple[str, str]] = {
    WrongKey: (
        "This node's key is not that of node 0 at {place}.",
        "Give every node the same key: the line that node 0 printed, the same --key-file, or the same SAMEBITS_KEY.",
    ),
    HasNoKey: (
        "Node 0 at {place} cannot use its key, and says why.",
        "Look at what node 0 says, and start all nodes again.",
    ),
    WrongAddress: (
        "What listens at {place} is node 0 of a run at another address.",
        "Name an address of node 0 itself in --rdzv-endpoint, the same on all nodes.",
    ),
    NotSamebits: (
        "What listens at {place} is not node 0 of a run of this version of samebits.",
        "Choose another port with --rdzv-endpoint on all nodes, or start the same version on all.",
    ),
}


def why_rejected(error: Exception, place: ListenAddress) -> SamebitsError:
    """What to say when TCP connected, and the hello failed."""
    if (found := _REJECTIONS.get(type(error))) is not None:
        return UsageError(found[0].format(place=place), found[1])
    if isinstance(error, TimeoutError):
        return Silent(
            f"What listens at {place} does not answer: node 0 still begins, is stopped, or another program has this port."
        )
    return NotYet(f"Node 0 at {place} broke off before the connection was open: look at what it says.")
