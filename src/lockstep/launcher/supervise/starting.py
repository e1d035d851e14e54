"""How the launcher orders ranks from the nursery, and what it says when all have begun."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from lockstep.errors import WorldError
from lockstep.launcher.nursery.handle import NurseryHandle
from lockstep.launcher.nursery.rank_variables import rank_task
from lockstep.launcher.request import LaunchRequest, Verbosity
from lockstep.launcher.supervise.run_store import RunStore
from lockstep.launcher.terminal.report import Line, StartTimes, logs_line, rank_lines
from lockstep.launcher.terminal.saying import Saying
from lockstep.protocol.nursery.messages import Spawn
from lockstep.protocol.rank_task import write_task
from lockstep.protocol.run_folder import RunFolder


class Start:
    """The start of a run whose nursery is ready."""

    def __init__(self, request: LaunchRequest, nursery: NurseryHandle, store: RunStore, saying: Saying) -> None:
        self._request, self._nursery, self._store, self._saying = request, nursery, store, saying
        self._ready_ns = time.monotonic_ns()
        self._fresh = request.fresh
        tasks = nursery.ready.tasks if nursery.ready is not None else 1
        if tasks != 1 and not self._fresh:
            self._fresh = True
            if request.restart.number:
                return
            text = f"importing torch started {tasks - 1} threads, so each rank starts its own interpreter (--fresh)"
            saying.line(Line("note", text))

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
            news: the pipe on which it tells what has happened.

        Raises:
            WorldError: when the nursery takes no orders.
        """
        changed = self._nursery.changed(os.environ)
        order = write_task(rank_task(self._request, number, self._store.port, changed))
        nothing = os.open(os.devnull, os.O_RDONLY)
        stdin = 0 if number == 0 and self._saying.terminal is not None else nothing
        sent = self._nursery.send(Spawn(number, self._fresh), (order, stdin, *pipes, news, *self._store.descriptors))
        for descriptor in (order, nothing, *pipes):
            os.close(descriptor)
        if not sent:
            raise WorldError("The nursery (the parent of all ranks) was killed or stopped from outside.")

    def say(self, began_ns: int, pids: Mapping[int, int]) -> None:
        """Say, once all ranks have begun, where the time went, and with -v who they are.

        Args:
            began_ns: time.monotonic_ns() when the launch began.
            pids: by rank.
        """
        request = self._request
        if request.verbosity is Verbosity.QUIET or self._saying.terminal is None:
            return
        times = StartTimes(
            command_s=(began_ns - (request.started_ns or began_ns)) / 1e9,
            import_s=(self._ready_ns - began_ns) / 1e9,
            fork_s=(time.monotonic_ns() - self._ready_ns) / 1e9,
        )
        if not request.restart.number:
            self._saying.line(logs_line(request.run_folder, times, self._fresh))
        if request.verbosity is Verbosity.DETAILED:
            folder = RunFolder(request.run_folder)
            for line in rank_lines(pids, {number: folder.log(number) for number in pids}):
                self._saying.line(line)
