"""How a node that cannot start tells the others, which would wait for it; within seconds.

Node 0 decides what becomes of the run, so every other node calls it, says its sentence, and goes. Node 0 itself lets in nobody, and
tells its sentence to all who come; where it cannot use its own key, it says just that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from lockstep.errors import LockstepError
from lockstep.nodes.address import Choice, Place
from lockstep.nodes.calling import call, key_of_job, patient
from lockstep.nodes.doorstep import Doorstep
from lockstep.nodes.hello import address_bytes
from lockstep.nodes.interfaces import listen
from lockstep.nodes.key import Key
from lockstep.nodes.loop import Loop
from lockstep.nodes.munge import seal
from lockstep.nodes.roster import Refused
from lockstep.nodes.wire import Wire, WireEnded
from lockstep.nodes.withdrawal import Withdrawal

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
        UsageError, WorldError: it cannot listen there.
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
