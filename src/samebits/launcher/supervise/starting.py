"""How ranks are started: what they meet through, the folder of their snapshots, the order to the nursery."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from samebits.errors import EnvironmentFailure, UsageError
from samebits.launcher.choices import Verbosity
from samebits.launcher.nodes.meeting import NodeMeeting
from samebits.launcher.nursery.handle import NurseryHandle
from samebits.launcher.nursery.rank_variables import rank_task
from samebits.launcher.recovery import most_restarts
from samebits.launcher.request import LaunchRequest
from samebits.launcher.terminal.report import Line, StartTimes, plain_line, rank_lines, start_line
from samebits.launcher.terminal.terminal import Console
from samebits.machine.held_folder import make_held
from samebits.machine.leftovers import SHARED_MEMORY, remove_left_folders
from samebits.protocol.nursery_messages import Spawn, StartStore
from samebits.protocol.rank_task import write_task
from samebits.protocol.run_folder import RunFolder
from samebits.protocol.saving import SNAPSHOTS_KEPT, SnapshotPlace

TABLE_BYTES = 64 << 20
"""Room for what ranks exchange; unwritten pages cost nothing."""
CONNECT_S = 5.0


class RunStore:
    """`with RunStore(...) as store: ...` gives all back; nothing of it has a name that could be left behind.

    Args:
        nursery: of the run.
        ranks: on all nodes.
        meeting: where ranks of several nodes meet, taken over; None on one node.
    """

    def __init__(self, nursery: NurseryHandle, ranks: int, meeting: NodeMeeting | None = None) -> None:
        self._nursery, self._num_ranks, self._meeting = nursery, ranks, meeting
        self.table = meeting.bell.fileno() if meeting is not None else _new_table()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # a store that a script serves there itself, outside the ranks, still gets the port
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._serves = False
        if meeting is not None:
            meeting.lead_out(self._connected)

    @property
    def descriptors(self) -> tuple[int, int]:
        """What ranks meet through and the port's socket, in the order in which ranks get them."""
        return self.table, self._socket.fileno()

    def serve(self) -> None:
        """Start the server, once, when a script wants a store at MASTER_PORT, where its rank has begun to listen.

        Of several nodes, the first one's serves all.
        """
        if self._serves:
            return
        self._serves = True
        self._socket.listen()
        if self._meeting is None or not self._meeting.serve(self._socket):
            self._nursery.send(StartStore(self.port, self._num_ranks), (self._socket.fileno(),))

    def _connected(self) -> socket.socket | None:
        """To the server, for a rank of another node."""
        self.serve()
        with suppress(OSError):
            return socket.create_connection(("127.0.0.1", self.port), CONNECT_S)
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._meeting is not None:
            self._meeting.close()
        else:
            os.close(self.table)
        self._socket.close()


def _new_table() -> int:
    table = _memory_without_a_name()
    os.fchmod(table, 0o600)
    os.ftruncate(table, TABLE_BYTES)
    # nothing can shrink it under a rank, which would be a SIGBUS there
    fcntl.fcntl(table, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return table


def _memory_without_a_name() -> int:
    try:
        return os.memfd_create("samebits-store", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM, errno.EACCES):
            raise
        raise UsageError(
            f"This system refuses memory without a name (memfd_create: {error.strerror}), in which ranks meet.",
            "Use a seccomp profile for this container that allows the call, or Linux 3.17 or newer.",
        ) from None


class Start:
    """The start of a run whose nursery is ready."""

    def __init__(self, request: LaunchRequest, nursery: NurseryHandle, store: RunStore, console: Console) -> None:
        self._request, self._nursery, self._store, self._saying = request, nursery, store, console
        self._ready_ns = time.monotonic_ns()
        self._spawns = request.placement.spawns
        tasks = nursery.ready.tasks if nursery.ready is not None else 1
        # [Note: threads keep a process from being forked]
        # A fork copies one thread; a lock that another one holds stays locked in the rank for ever.
        if tasks != 1 and not self._spawns:
            self._spawns = True
            if request.restart.number:
                return
            text = f"importing torch started {tasks - 1} threads, so each rank starts its own interpreter (--start-method spawn)"
            console.line(Line("note", text))

    def rank(
        self,
        number: int,
        pipes: tuple[int, int],
        news: int,
    ) -> None:
        """Order a rank; its pipes (standard output and error) are closed here.

        Args:
            number: the rank.
            pipes: for its standard output and error.
            news: the pipe on which it reports what has happened.

        Raises:
            EnvironmentFailure: when the nursery takes no orders.
        """
        changed = self._nursery.changed(os.environ)
        order = write_task(rank_task(self._request, number, self._store.port, changed, self._nursery.torch_variables))
        nothing = os.open(os.devnull, os.O_RDONLY)
        stdin = 0 if number == 0 and self._saying.terminal is not None else nothing
        sent = self._nursery.send(Spawn(number, self._spawns), (order, stdin, *pipes, news, *self._store.descriptors))
        for descriptor in (order, nothing, *pipes):
            os.close(descriptor)
        if not sent:
            raise EnvironmentFailure("The nursery (the parent of all ranks) was killed or stopped from outside.")

    def say(self, began_ns: int, pids: Mapping[int, int]) -> None:
        """Say with -v, once all ranks have begun, where the time went, and who they are.

        Args:
            began_ns: time.monotonic_ns() when the launch began.
            pids: by rank.
        """
        request = self._request
        if request.output.verbosity is not Verbosity.DETAILED:
            return
        times = StartTimes(
            command_s=(began_ns - (request.output.started_ns or began_ns)) / 1e9,
            import_s=(self._ready_ns - began_ns) / 1e9,
            fork_s=(time.monotonic_ns() - self._ready_ns) / 1e9,
        )
        if not request.restart.number:
            self._saying.line(start_line(times, self._spawns))
        folder = RunFolder(request.output.run_folder)
        for line in rank_lines(pids, {number: folder.log(number) for number in pids}):
            self._saying.line(line)

    def say_plain(self) -> None:
        """Say with -v, at the first start, that the ranks of a script without `samebits.init` have met."""
        if self._request.output.verbosity is Verbosity.DETAILED and not self._request.restart.number:
            self._saying.line(plain_line())


@dataclass
class SnapshotFolder:
    """`with SnapshotFolder(request) as snapshots: ...` names the folder, and removes it with everything in it.

    It is made when the first ranks start: from then on the nursery outlives the launcher, and removes what that leaves.
    This process holds a lock on it, so that others can tell it from one that a killed launcher left. There is no folder
    where ranks never start again, or where somebody else's evidence is recorded.
    """

    request: LaunchRequest
    _path: Path | None = None
    _lock: int = -1

    @property
    def place(self) -> SnapshotPlace | None:
        """What the ranks get."""
        return SnapshotPlace(str(self._path), self.request.recovery.keeping.steps) if self._path is not None else None

    def __enter__(self) -> Self:
        remove_left_folders()
        recovery = self.request.recovery
        if (
            most_restarts(recovery, uses_samebits=True)
            and recovery.keeping.is_on
            and not self.request.computation.evidence
        ):
            self._path = SHARED_MEMORY / SNAPSHOTS_KEPT.format(os.getpid(), secrets.token_hex(8))
        return self

    def make(self) -> None:
        """Make it, once. Where the system refuses one, ranks say why they keep no state."""
        if self._path is not None and self._lock < 0:
            with suppress(OSError):
                self._lock = make_held(self._path)

    def _remove(self) -> None:
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
            self._path = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()
