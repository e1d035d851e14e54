"""Start a nursery that waits, from `lockstep warm` or from a run that is to keep one."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from lockstep.errors import WorldError
from lockstep.launch.import_failure import check_import, failed_import
from lockstep.launch.nursery.preloading import FOR_OPTIMIZERS, OURS
from lockstep.launch.nursery.rank_variables import nursery_variables
from lockstep.launch.warm.asked import must_be_same
from lockstep.launch.warm.place import make_folder
from lockstep.launch.warm.standing_in import ROOM
from lockstep.launch.warm.waiters import keep_longer, stop_oldest
from lockstep.machine import packets
from lockstep.machine.leftovers import MARKER
from lockstep.machine.processes import address_limit, interpreter_options

MODULES = (*FOR_OPTIMIZERS, *OURS)
"""What any run may want; a run that a nursery of its own would spare some of it finds them imported."""
MOST = 3
"""How many wait at the same time: for other interpreters, environments, numbers of threads."""


def start_waiting(variables: Mapping[str, str], threads: int, for_s: float) -> dict[str, Any]:
    """Start one and wait until it has imported everything; what it says of itself then, and what has ended for it (`ended`).

    Raises:
        WorldError: when it cannot be.
        UsageError: when it has too few addresses to import torch.
    """
    process, end, ended = _spawn(variables, threads, for_s)
    try:
        word, told, _ = packets.receive(end)
    except BaseException:
        os.kill(process, signal.SIGKILL)
        raise
    finally:
        end.close()
    if word != "ready":
        os.waitpid(process, 0)
        if word == "failed":
            raise failed_import(told[0], told[1], address_limit())
        check_import(bool(told), address_limit(), "The process that was to wait")
        raise WorldError(str(told[0]) if told else "The process that was to wait was killed from outside.")
    return {**told[0], "process": process, "ended": ended}


def keep_for_the_next(variables: Mapping[str, str], threads: int, for_s: float) -> None:
    """Let one wait for the next run like this one; it begins to import when this process has ended its work."""
    if keep_longer(variables, threads, for_s)[0] is None:
        with suppress(OSError):
            _spawn(variables, threads, for_s)[1].close()


def _spawn(variables: Mapping[str, str], threads: int, for_s: float) -> tuple[int, socket.socket, list[int]]:
    ended: list[int] = []
    if (found := make_folder(variables)) is not None:
        os.close(found[0])
        ended = stop_oldest(found[1], MOST - 1)
    told = {"same": must_be_same(), "variables": dict(variables), "modules": MODULES, "for_s": for_s}
    order = os.memfd_create("lockstep-warm-order")
    os.write(order, json.dumps(told).encode())
    end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for descriptor in (order, theirs.fileno()):
        os.set_inheritable(descriptor, True)
    own = {**nursery_variables(threads, "", variables), "LOCKSTEP_WARM_ROOM": "x" * ROOM}
    del own[MARKER]  # it is no process of a run
    command = ["-P", "-m", "lockstep.launch.warm.process", str(order), str(theirs.fileno()), "x" * ROOM]
    process = os.posix_spawn(
        sys.executable,
        [sys.executable, *interpreter_options(), *command],
        {**variables, **own},
        file_actions=[(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)],
        setsigmask=[],
        setsigdef=_all_signals(),
    )
    os.close(order)
    theirs.close()
    return process, end, ended


def _all_signals() -> Sequence[int]:
    return [number for number in signal.valid_signals() if number not in {signal.SIGKILL, signal.SIGSTOP}]
