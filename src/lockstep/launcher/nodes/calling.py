"""How a node calls node 0, what is said when it cannot, and how a node that cannot start tells the others.

That nobody listens yet is usual, since nodes start in any order; that nothing answers at all is not waited for. Node 0 decides
what becomes of the run, so a node that cannot start calls it, says its sentence, and goes. Node 0 itself lets in nobody then, and
tells its sentence to all who come; where it cannot use its own key, it says just that.

Runs in: threads of a launcher, named lockstep-call and lockstep-farewell.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from lockstep.errors import EnvironmentFailure, LockstepError, UsageError
from lockstep.launcher.nodes.address import Choice, Place, family, is_loopback
from lockstep.launcher.nodes.doorstep import Doorstep
from lockstep.launcher.nodes.interfaces import listen
from lockstep.launcher.nodes.key import LONGEST_SEAL, Key, seal, unseal
from lockstep.launcher.nodes.roster import Refused, Withdrawal
from lockstep.launcher.nodes.session import (
    ASKS_FOR_SEAL,
    GREETING_BYTES,
    MAGIC,
    PROOF_BYTES,
    CallerHello,
    HasNoKey,
    NotLockstep,
    WrongAddress,
    WrongKey,
    address_bytes,
    nonce_in,
)
from lockstep.launcher.nodes.wire import Loop, Message, Wire, WireEnded

VERSION = 2
"""Of what is told in frames."""
ANSWER_S = 4.0
"""How long one attempt waits for an answer."""
AGAIN_S = 0.05
T = TypeVar("T")


class NotYet(EnvironmentFailure):
    """The machine answers, but no process listens there, or it broke off at once: node 0 begins, or has ended."""


class Silent(NotYet):
    """Something listens there and says nothing: node 0 begins slowly, or it is something else."""


class Unreachable(EnvironmentFailure):
    """No way leads there: a person's mistake when a run begins, the world's when it goes on."""

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(f"{problem} {fix}")
        self.problem, self.fix = problem, fix


def patient(attempt: Callable[[], T], patience_s: float) -> T:
    """What `attempt` gives, tried again for so long while it raises NotYet; then raise what it raised last."""
    until = time.monotonic() + patience_s
    while True:
        try:
            return attempt()
        except NotYet:
            if time.monotonic() >= until:
                raise
        time.sleep(AGAIN_S)


def call(place: Place, key: Key, first: dict[str, Any]) -> tuple[Wire, list[Message]]:
    """Call node 0, and say who calls; the connection, and what came on it already. Takes a few times `ANSWER_S` at most.

    Args:
        place: where it listens.
        key: the run's.
        first: the first message: `node`, and `purpose`.

    Raises:
        NotYet: no process listens there, or it broke off.
        UsageError: this node has another key; what listens there is no node 0; or node 0 does not let this node in.
        Unreachable: no way leads there.
    """
    end = connected(place)
    try:
        end.settimeout(ANSWER_S)
        hello = CallerHello(key.secret, address_bytes(place.address, place.port))
        greeting = _greeting(end)
        end.sendall(hello.hello(greeting)[len(MAGIC) :])
        keys = hello.session(greeting, _exactly(end, PROOF_BYTES))
        wire = Wire.between_nodes(end, keys.from_caller, keys.from_host)
        wire.send({**first, "lockstep": VERSION})
        answer, *early = _answer(wire)
    except (OSError, ValueError, WireEnded) as error:
        end.close()
        raise why_not_let_in(error, place) from None
    told, _ = answer
    if told.get("ok") is True:
        return wire, early
    wire.close()
    if "problem" in told:
        raise UsageError(str(told["problem"]), str(told["fix"]))
    raise UsageError(
        f"Node 0 at {place} does not let this node in: it was given up before, or has another version of lockstep.",
        "Start the same version on all nodes.",
    )


def key_of_job(place: Place, job: str) -> Key:
    """Ask node 0 for the key of this job of SLURM. Raises as `call` and `lockstep.launcher.nodes.key.unseal`."""
    end, sealed = connected(place), b""
    try:
        end.settimeout(ANSWER_S)
        nonce_in(_greeting(end))
        end.sendall(ASKS_FOR_SEAL[len(MAGIC) :])
        while len(sealed) < LONGEST_SEAL and (piece := end.recv(LONGEST_SEAL)):
            sealed += piece
    except (TimeoutError, ValueError) as error:  # a node 0 that begins is asked again
        raise why_not_let_in(error, place) from None
    except OSError:
        sealed = b""
    finally:
        end.close()
    if not sealed:
        raise EnvironmentFailure(
            f"Node 0 at {place} gives no key sealed with munge: look at what it says, or give all nodes the same --key-file."
        )
    return unseal(sealed, job)


def connected(place: Place) -> socket.socket:
    """Connect, without a word. Raises like `call`."""
    end = socket.socket(socket.AF_INET6 if family(place.address) == 6 else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if place.source:
            end.bind((place.source, 0))
        end.settimeout(ANSWER_S)
        end.connect((place.address, place.port))
    except OSError as error:
        end.close()
        raise why_not_connected(error, place) from None
    return end


def _greeting(end: socket.socket) -> bytes:
    """Node 0's first bytes. Raises OSError, NotLockstep."""
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


def _answer(wire: Wire) -> list[Message]:
    """Node 0's first message, and what came with it. Raises OSError, WireEnded."""
    until = time.monotonic() + ANSWER_S
    while (left_s := until - time.monotonic()) > 0:
        if select.select([wire], [], [], left_s)[0] and (found := wire.receive()):
            return found
    raise TimeoutError


def why_not_connected(error: OSError, place: Place) -> LockstepError:
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


def why_not_let_in(error: Exception, place: Place) -> LockstepError:
    """What to say when TCP connected, and the hello failed."""
    if isinstance(error, WrongKey):
        return UsageError(
            f"This node's key is not that of node 0 at {place}.",
            "Give every node the same key: the line that node 0 printed, the same --key-file, or the same LOCKSTEP_KEY.",
        )
    if isinstance(error, HasNoKey):
        return UsageError(
            f"Node 0 at {place} cannot use its key, and says why.",
            "Look at what node 0 says, and start all nodes again.",
        )
    if isinstance(error, WrongAddress):
        return UsageError(
            f"What listens at {place} is node 0 of a run at another address.",
            "Name an address of node 0 itself in --rdzv-endpoint, the same on all nodes.",
        )
    if isinstance(error, NotLockstep):
        return UsageError(
            f"What listens at {place} is not node 0 of a run of this version of lockstep.",
            "Choose another port with --rdzv-endpoint on all nodes, or start the same version on all.",
        )
    if isinstance(error, TimeoutError):
        return Silent(
            f"What listens at {place} does not answer: node 0 still begins, is stopped, or another program has this port."
        )
    return NotYet(f"Node 0 at {place} broke off before the connection was open: look at what it says.")


CONNECT_S = 2.0
"""How long a node tries to reach node 0."""
MOST_S = 4.0
"""How long telling may take: others answer once torch is imported."""
TURN_S = 0.25


def knock(place: Place, key: Key | None, job: str, withdrawal: Withdrawal) -> None:
    """Tell node 0, once it listens.

    Args:
        place: where.
        key: the run's; None: asked for there.
        job: SLURM's, if the key is sealed for it.
        withdrawal: what to tell.

    Raises:
        LockstepError: it could not be told in time.
    """
    until = time.monotonic() + CONNECT_S
    known = key if key is not None else patient(partial(key_of_job, place, job), CONNECT_S)
    hello = {**withdrawal.entry(), "purpose": "withdrawal"}
    wire, _ = patient(partial(call, place, known, hello), until - time.monotonic())
    wire.close()


def hold(chosen: Choice, key: Key | None, job: str, refused: Refused, others: int) -> None:
    """Tell all who call node 0, until so many others have, for at most `MOST_S`.

    Args:
        chosen: where it would be.
        key: the run's; None: it cannot be used here.
        job: SLURM's, if the key is to be sealed for it.
        refused: what to tell.
        others: how many other nodes do not know it yet.

    Raises:
        PortTaken: another node of this run on this machine is the first one, or another program listens there.
        UsageError, EnvironmentFailure: it cannot listen there.
    """
    came: set[str] = set()

    def let_in(wire: Wire, first: dict[str, Any]) -> None:
        came.add(str(first.get("node")))
        with suppress(WireEnded):
            wire.send({"ok": False, "problem": refused.problem, "fix": refused.fix})
        wire.close()

    place = chosen.gate
    listener = listen(place)
    own = {address_bytes(address, listener.getsockname()[1]) for address in (place.address, *chosen.meant)}
    loop = Loop(TURN_S, lambda: doorstep.tick(time.monotonic()))
    sealing = partial(seal, key, job) if job and key is not None else None
    doorstep = Doorstep(listener, key, own, loop, let_in=let_in, stranger=lambda _address: None, seal=sealing)
    until = time.monotonic() + MOST_S
    while len(came) < others and time.monotonic() < until:
        loop.wait(TURN_S)
    doorstep.close()
    loop.close()


def in_time(work: Callable[[], None]) -> None:
    """Do it in a thread, for at most `MOST_S`; what goes wrong there is nobody's business."""

    def do() -> None:
        with suppress(LockstepError, OSError):
            work()

    thread = threading.Thread(target=do, name="lockstep-farewell", daemon=True)
    thread.start()
    thread.join(MOST_S)
