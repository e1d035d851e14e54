"""How a node that cannot start tells the others, which would wait for it; without torch, and within seconds.

The run's first node decides what becomes of the run, so every other node knocks at its gate, says its sentence there, and goes.
The first node itself has no gate yet: it opens one that lets in nobody and tells its sentence to all who come.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress

from lockstep.errors import LockstepError
from lockstep.nodes.address import Place
from lockstep.nodes.dial import NotYet, dial, key_of_job, patient
from lockstep.nodes.gate import Gate, GateEvent, NodeCame, NodeWithdrew
from lockstep.nodes.greeting import VERSION, Purpose
from lockstep.nodes.identity import identity
from lockstep.nodes.interfaces import listen
from lockstep.nodes.key import Key
from lockstep.nodes.munge import seal
from lockstep.nodes.pair import close_now
from lockstep.nodes.roster import Refused
from lockstep.nodes.withdrawal import Withdrawal

CONNECT_S = 2.0
"""How long a node tries to reach the first one."""
MOST_S = 4.0
"""How long telling may take: links, and gates that listen already, answer once torch is imported."""


def knock(place: Place, key: Key | None, job: str, withdrawal: Withdrawal) -> None:
    """Tell the run's first node, once somebody listens there.

    Args:
        place: where its gate is.
        key: the run's; None: asked for there.
        job: SLURM's, if the key is sealed for it.
        withdrawal: what to tell.

    Raises:
        LockstepError: it could not be told in time.
    """
    until = time.monotonic() + CONNECT_S
    known = key if key is not None else key_of_job(place, job, CONNECT_S)
    context = identity(known).context(is_gate=False)
    hello = {**withdrawal.entry(), "lockstep": VERSION, "purpose": Purpose.WITHDRAWAL}
    close_now(asyncio.run(patient(lambda: dial(place, context, hello), until - time.monotonic(), NotYet)))


def hold(place: Place, key: Key, job: str, refused: Refused, others: int) -> None:
    """Tell all who come to the run's first node, until so many others have come, for at most `MOST_S`.

    Args:
        place: where its gate would be.
        key: the run's.
        job: SLURM's, if the key is to be sealed for it.
        refused: what to tell.
        others: how many other nodes do not know it yet.

    Raises:
        PortTaken: another node of this run on this machine is the first one, or another program listens there.
        UsageError, WorldError: it cannot listen there.
    """
    came: set[str] = set()
    all_came = threading.Event()

    def note(event: GateEvent) -> None:
        match event:
            case NodeCame(_, hello) | NodeWithdrew(hello):
                came.add(str(hello["node"]))
        if len(came) >= others:
            all_came.set()

    gate = Gate(
        listen(place),
        0,
        key,
        note,
        seal=(lambda: seal(key, job)) if job else None,
        refusal={"problem": refused.problem, "fix": refused.fix},
    )
    with closing(gate.start()):
        all_came.wait(MOST_S)


def in_time(work: Callable[[], None]) -> None:
    """Do it in a thread, for at most `MOST_S`; what goes wrong there is nobody's business."""

    def do() -> None:
        with suppress(LockstepError, OSError):
            work()

    thread = threading.Thread(target=do, name="lockstep-farewell", daemon=True)
    thread.start()
    thread.join(MOST_S)
