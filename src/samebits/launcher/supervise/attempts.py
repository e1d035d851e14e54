"""All attempts of one run: one after another, until `recovery` says stop.

    attempt = one start of all ranks, until all have ended            supervisor
    recovery.decide(how it ended, what was requested, losses)         ../recovery; over nodes agreement
    RestartAll: put aside what they left, then the next attempt       ../folder

Snapshots in shared memory outlive an attempt, and end with the run  starting.SnapshotFolder

Each attempt has its own rendezvous, journals and pipes; what one leaves, the next cannot mistake for its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from samebits.errors import EnvironmentFailure
from samebits.launcher.blame import verdict_of
from samebits.launcher.event_log import EventLog
from samebits.launcher.folder import remove_copies
from samebits.launcher.nodes.cluster import Cluster
from samebits.launcher.nursery.handle import NurseryHandle
from samebits.launcher.recovery import Loss, Regroup, Stop, decide, most_restarts
from samebits.launcher.request import LaunchRequest
from samebits.launcher.signals import CaughtSignals
from samebits.launcher.supervise.agreement import Agreement
from samebits.launcher.supervise.attempt import (
    Attempt,
    newest_state,
    next_request,
    regrouped_request,
    restart_fields,
    scene_of,
)
from samebits.launcher.supervise.observer import FirstLines, Observer
from samebits.launcher.supervise.starting import RunStore, SnapshotFolder
from samebits.launcher.supervise.supervisor import Supervisor
from samebits.launcher.terminal.cases import Losses
from samebits.launcher.terminal.failure_block import restart_block
from samebits.launcher.terminal.report import Line, StatesLeft, opens_at_once, regroup_line
from samebits.protocol.events import Kind
from samebits.protocol.meeting_place import Restart
from samebits.protocol.run_folder import RunFolder


@dataclass
class Attempts:
    """Those of one run. `run` returns the last one."""

    request: LaunchRequest
    nursery: NurseryHandle
    losses: Losses
    began_ns: int
    signals: CaughtSignals
    events: EventLog
    cluster: Cluster | None = None
    """The other nodes of the run, if there are any."""
    _first_lines: FirstLines = field(init=False)

    def __post_init__(self) -> None:
        self._first_lines = FirstLines(opens_at_once(self.request))
        self._agreement = None
        if self.cluster is not None:
            self._agreement = Agreement(self.cluster, self.request, self.losses.console, self.signals)

    def run(self) -> Attempt:
        """Start the ranks, and start them again while that helps; no process of them is left.

        Raises:
            EnvironmentFailure: when the nursery cannot import torch or dies, or the run folder cannot be used again.
        """
        history: list[Loss] = []
        request = replace(self.request, restart=Restart(most=most_restarts(self.request.recovery, uses_samebits=False)))
        with self.signals, SnapshotFolder(self.request) as snapshots:
            request = replace(request, snapshots=snapshots.place)
            while True:
                if self._agreement is not None:
                    request = self._agreement.meet(request)
                self.events.start(request)
                attempt = self._live(request, history, snapshots)
                self._note_ended(request, attempt)
                if self._agreement is None:
                    decision = decide(scene_of(request, attempt), self.request.recovery, history)
                else:
                    attempt, decision = self._agreement.agree(request, attempt, history)
                if isinstance(decision, Stop):
                    if decision.reason:
                        self.losses.console.line(Line("stop", decision.reason))
                    return (
                        replace(attempt, verdict=replace(attempt.verdict, exit_code=2))
                        if decision.is_script
                        else attempt
                    )
                self.losses.console.settle()
                if isinstance(decision, Regroup):
                    self.losses.console.line(regroup_line(decision, attempt.whence))
                    self.events.add(Kind.NODES, said=decision.changes)
                    request = regrouped_request(request, decision, attempt)
                    continue
                history.append(decision.loss)
                why = attempt.why_short_of_memory(decision.loss.rank)
                self.losses.console.block(restart_block(decision, attempt.whence, why))
                self.events.restart(
                    decision.loss.step, attempt.whence.step, **restart_fields(request, decision, attempt)
                )
                request = next_request(request, decision, attempt)

    def _note_ended(self, request: LaunchRequest, attempt: Attempt) -> None:
        observer = attempt.observer
        known = dict(zip(request.numbers, observer.own_gauges(), strict=True))
        elsewhere = (rank for rank in range(request.world_size) if rank not in request.numbers)
        known |= dict(zip(elsewhere, observer.last_gauges, strict=False))
        last = {rank: one for rank, journal in observer.journals.items() if (one := journal.last()) is not None}
        self.events.ended(attempt.ending.ends, known, last, on_request=bool(attempt.ending.interrupted_by))

    def _live(self, request: LaunchRequest, history: list[Loss], snapshots: SnapshotFolder) -> Attempt:
        folder = RunFolder(request.output.run_folder)
        logs = {rank: folder.log(rank) for rank in request.numbers}
        log_bytes = {rank: log.stat().st_size if log.exists() else 0 for rank, log in logs.items()}
        nodes = self._agreement.others() if self._agreement is not None else None
        observer = Observer(request, folder, self.losses, nodes, events=self.events, first_lines=self._first_lines)
        meeting = self.cluster.meeting() if self.cluster is not None else None
        with RunStore(self.nursery, request.world_size, meeting) as store:
            supervisor = Supervisor(
                request,
                folder,
                self.nursery,
                self.losses,
                observer,
                store,
                self.began_ns,
                self.signals,
                history,
                snapshots.make,
                nodes,
            )
            try:
                ending = supervisor.run()
            except EnvironmentFailure as error:
                if (newest := observer.newest()[1]) is not None:
                    raise EnvironmentFailure(
                        f"{error} {StatesLeft(None, newest, 0.0).sentence.capitalize()}."
                    ) from None
                raise
            finally:
                remove_copies(folder)
        observer.last_words()
        place, newest = observer.newest()
        verdict, whence = (
            verdict_of(ending.ends, ending.interrupted_by),
            newest_state(request, newest, observer.no_snapshots()),
        )
        return Attempt(ending, verdict, observer, log_bytes, bool(place), newest, whence)
