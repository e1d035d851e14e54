"""All starts of the ranks of one run: a world of ranks after another, until `recovery` says stop.

    world = all ranks, from their start until all have ended       supervisor
    recovery.decide(how it ended, what was asked for, losses)      ../recovery
    RestartAll: put aside what they left, then the next world      ../folder

Snapshots in shared memory outlive a world, and end with the run  snapshot_folder

Each world has its own meeting, journals and pipes; what one leaves, the next cannot mistake for its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lockstep.errors import EnvironmentFailure
from lockstep.launcher.diagnosis.findings import EARLY_LEAVER
from lockstep.launcher.diagnosis.told import Teller
from lockstep.launcher.event_log import EventLog
from lockstep.launcher.folder import make_rank_files, remove_copies, renew_run_folder
from lockstep.launcher.nodes.cluster import Cluster, Interrupted
from lockstep.launcher.nodes.roster import Member
from lockstep.launcher.nursery.handle import NurseryHandle
from lockstep.launcher.recovery import Decision, Loss, Regroup, RestartAll, Scene, Stop, decide, loss_of, most_restarts
from lockstep.launcher.request import LaunchRequest, Recover, Verbosity
from lockstep.launcher.signals import CaughtSignals
from lockstep.launcher.supervise.all_nodes import (
    OtherNodes,
    Told,
    Whole,
    decode_decision,
    encode_decision,
    newest_whence,
    regrouped,
    verdict_everywhere,
    whole,
)
from lockstep.launcher.supervise.observer import Observer, Said
from lockstep.launcher.supervise.starting import RunStore, SnapshotFolder
from lockstep.launcher.supervise.supervisor import Ending, Supervisor
from lockstep.launcher.supervise.surroundings import Known, memory_line
from lockstep.launcher.terminal.cases import Losses
from lockstep.launcher.terminal.failure_block import Evidence, crash_stack, failure_block, last_work
from lockstep.launcher.terminal.report import (
    Line,
    StatesLeft,
    Whence,
    nodes_line,
    opens_at_once,
    regroup_line,
    restart_line,
    stop_line,
)
from lockstep.launcher.verdict import Verdict, judge
from lockstep.machine.regular_file import open_regular
from lockstep.protocol.events import Kind
from lockstep.protocol.journal.gauges import Gauges, listed, unlist
from lockstep.protocol.layout.mesh import shrinks
from lockstep.protocol.meeting_place import Restart, Seat
from lockstep.protocol.run_folder import RunFolder, add_line, unsaved
from lockstep.protocol.saving import newest_kept

MOST_NAMED = 3
MOST_LOG_BYTES = 1 << 22


@dataclass(frozen=True)
class Attempt:
    """One start of all ranks, when all have ended."""

    ending: Ending
    verdict: Verdict
    observer: Observer
    log_bytes: Mapping[int, int]
    """How long each rank's log was when it started."""
    saves: bool
    """Whether the run saves by itself."""
    newest_step: int | None
    """The step of the newest state that lockstep saved on the disk; None when there is none."""
    whence: Whence
    """From where the next ranks would go on."""
    block: str | None = None
    """The failure block of the run on several nodes; None on one."""
    first_node: str = ""
    """The node with rank 0, which says how the whole run went; empty on that one, and on one node."""


@dataclass
class Attempts:
    """The worlds of one run. `run` returns the last one."""

    request: LaunchRequest
    nursery: NurseryHandle
    losses: Losses
    began_ns: int
    signals: CaughtSignals
    events: EventLog
    cluster: Cluster | None = None
    """The other nodes of the run, if there are any."""
    _said: Said = field(init=False)
    _said_notes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._said = Said(opens_at_once(self.request))

    def run(self) -> Attempt:
        """Start the ranks, and start them again while that helps; no process of them is left.

        Raises:
            EnvironmentFailure: when the nursery cannot import torch or dies, or the run folder cannot be used again.
        """
        history: list[Loss] = []
        request = replace(self.request, restart=Restart(most=most_restarts(self.request.recovery, uses_lockstep=False)))
        with self.signals, SnapshotFolder(self.request) as snapshots:
            request = replace(request, snapshots=snapshots.place)
            while True:
                if self.cluster is not None:
                    request = self._meet(request, self.cluster)
                self.events.start(request)
                world = self._live(request, history, snapshots)
                self._note_ended(request, world)
                if self.cluster is None:
                    decision = self._decide(request, world, history)
                else:
                    world, decision = self._agree(request, world, history, self.cluster)
                if isinstance(decision, Stop):
                    if decision.reason:
                        self.losses.saying.line(stop_line(decision.reason))
                    return replace(world, verdict=replace(world.verdict, exit_code=2)) if decision.is_script else world
                self.losses.saying.settle()
                if isinstance(decision, Regroup):
                    self.losses.saying.line(regroup_line(decision, world.whence))
                    self.events.add(Kind.NODES, said=decision.changes)
                    request = _regrouped(request, decision, world)
                    continue
                history.append(decision.loss)
                if (memory := memory_line(decision.loss.rank, world.ending.known)) is not None:
                    self.losses.saying.line(memory)
                self.losses.saying.line(restart_line(decision, world.whence))
                self.events.add(Kind.RESTART, **_restart_fields(request, decision, world))
                request = _next(request, decision, world)

    def _note_ended(self, request: LaunchRequest, world: Attempt) -> None:
        observer = world.observer
        known = dict(zip(request.numbers, observer.own_gauges(), strict=True))
        elsewhere = (rank for rank in range(request.world_size) if rank not in request.numbers)
        known |= dict(zip(elsewhere, observer.last_gauges, strict=False))
        last = {rank: observer.tail(rank)[-1:] for rank in request.numbers}
        places = {
            rank: f"{Path(one.file).name}:{one.line}" for rank, found in last.items() for one in found if one.file
        }
        self.events.ended(world.ending.ends, known, places)

    def _meet(self, request: LaunchRequest, cluster: Cluster) -> LaunchRequest:
        """Wait for the other nodes; make this node's files for the ranks that it has among them."""
        try:
            seat = cluster.meet(self.signals)
        except Interrupted as signal:
            raise SystemExit(128 + signal.number) from None
        view = cluster.view
        request = replace(
            request,
            seat=seat,
            placement=replace(request.placement, threads=view.threads, cores=view.cores),
            computation=replace(request.computation, lanes=view.lanes or request.computation.lanes),
            restart=replace(request.restart, number=seat.round),
        )
        make_rank_files(request)
        add_line(RunFolder(request.output.run_folder).nodes, _roster(seat, view.members))
        if request.output.verbosity is not Verbosity.QUIET:
            self.losses.saying.line(nodes_line(request, [member.text for member in view.members]))
            for note in (note for note in view.notes if note not in self._said_notes):
                self._said_notes.add(note)
                self.losses.saying.line(Line("nodes", note))
        return request

    def _agree(
        self, request: LaunchRequest, world: Attempt, history: list[Loss], cluster: Cluster
    ) -> tuple[Attempt, Decision]:
        """Tell the other nodes how the ranks here ended, and hear what follows."""
        scene = self._scene(request, world)
        cluster.tell_ended(_told_of(scene, world, RunFolder(request.output.run_folder)).encode())
        if cluster.is_host:
            decided = world.observer.decided()
            cluster.lanes = decided.get("lanes") or cluster.lanes
            cluster.threads = decided.get("threads") or cluster.threads
            self._wait(cluster, cluster.view.is_over)
        if cluster.is_host and not cluster.cut:
            world.observer.last_gauges = _gauges_elsewhere(cluster)
            found = whole(cluster.view)
            cluster.tell_decision(
                encode_decision(
                    self._decide_for_all(scene, found, history, cluster),
                    found.told,
                    newest_whence(world.whence, cluster.view),
                )
            )
        self._wait(cluster, lambda: cluster.view.decision is not None)
        if cluster.view.decision is None:
            raise EnvironmentFailure(cluster.lost())
        decision, told, whence = decode_decision(cluster.view.decision)
        if (by := world.ending.interrupted_by or cluster.left_by) and not isinstance(
            decision, Stop
        ):  # this node leaves
            ending = replace(world.ending, interrupted_by=by)
            return replace(world, ending=ending, verdict=judge(ending.ends, by), block=""), Stop()
        first_node = "" if cluster.is_host else cluster.view.members[0].text
        verdict = verdict_everywhere(world.verdict, told)
        return replace(world, verdict=verdict, whence=whence, block=told.block, first_node=first_node), decision

    def _wait(self, cluster: Cluster, is_there: Callable[[], bool]) -> None:
        """Wait for other nodes, whose ranks may run for long after those here have ended."""
        try:
            cluster.wait_for(is_there, self.signals)
        except Interrupted as signal:
            raise SystemExit(128 + signal.number) from None

    def _decide_for_all(self, scene: Scene, found: Whole, history: list[Loss], cluster: Cluster) -> Decision:
        """What follows a round; asked on the run's first node."""
        goes_on = self.request.recovery.recover is not Recover.OFF
        if (others := regrouped(found, cluster.view, goes_on=goes_on)) is not None:
            return others
        over = replace(scene, verdict=found.verdict, uses_lockstep=found.told.uses_lockstep, loss=found.told.loss)
        return decide(over, self.request.recovery, history)

    def _live(self, request: LaunchRequest, history: list[Loss], snapshots: SnapshotFolder) -> Attempt:
        folder = RunFolder(request.output.run_folder)
        logs = {rank: folder.log(rank) for rank in request.numbers}
        log_bytes = {rank: log.stat().st_size if log.exists() else 0 for rank, log in logs.items()}
        nodes = OtherNodes(self.cluster, Teller(request.recovery.stall_after_s)) if self.cluster is not None else None
        observer = Observer(request, folder, self.losses, nodes, events=self.events, said=self._said)
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
        verdict, whence = judge(ending.ends, ending.interrupted_by), _whence(request, newest, observer.no_snapshots())
        return Attempt(ending, verdict, observer, log_bytes, bool(place), newest, whence)

    def _decide(self, request: LaunchRequest, world: Attempt, history: list[Loss]) -> Decision:
        return decide(self._scene(request, world), self.request.recovery, history)

    def _scene(self, request: LaunchRequest, world: Attempt) -> Scene:
        culprit, observer = world.verdict.culprit, world.observer
        last = last_work(observer.tail(culprit.rank)) if culprit is not None else None
        return Scene(
            world.verdict,
            observer.uses_lockstep,
            last,
            can_start=not world.ending.nursery_is_gone,
            ranks=request.placement.ranks,
            can_shrink=request.seat is None and _can_shrink(request, observer),
        )


def _whence(request: LaunchRequest, saved: int | None, why: str) -> Whence:
    """The newest of what is on the disk and in memory, as ranks choose it; the beginning, where states lack something."""
    names = unsaved(RunFolder(request.output.run_folder), "names") if request.recovery.recover is Recover.EXACT else []
    if names:
        return Whence(why=f"no state holds {', '.join(names[:MOST_NAMED])}{' and more' * (len(names) > MOST_NAMED)}")
    kept = newest_kept(Path(request.snapshots.folder)) if request.snapshots is not None else None
    if kept is not None and (saved is None or kept > saved):
        return Whence(kept, in_memory=True)
    if not why and request.snapshots is not None and request.snapshots.steps:
        why = "the first one was not written yet"  # it was asked for, and the writer has to start first
    return Whence(saved, why=why and f"no snapshot: {why}")


def _written_since(log: Path, before: int) -> bytes:
    """The end of what was written to a rank's log since it had `before` bytes; nothing where the script put something else there."""
    with suppress(OSError), open_regular(log) as file:
        file.seek(max(before, os.fstat(file.fileno()).st_size - MOST_LOG_BYTES))
        return file.read(MOST_LOG_BYTES)
    return b""


def _can_shrink(request: LaunchRequest, observer: Observer) -> bool:
    """Whether fewer ranks would compute the same. A script without lockstep must know itself what it does then."""
    if not observer.uses_lockstep:
        return request.recovery.shrinks
    decided = observer.decided()
    return shrinks(request.computation.form) and bool(decided.get("lanes")) and not decided.get("ranks_are_fixed")


def _regrouped(request: LaunchRequest, decision: Regroup, world: Attempt) -> LaunchRequest:
    """The next world of ranks, on other nodes; lanes stay."""
    told = {"regroup": decision.changes, "step": world.whence.step, "in_memory": world.whence.in_memory}
    add_line(RunFolder(request.output.run_folder).restarts, told)
    lanes = world.observer.decided().get("lanes") or request.computation.lanes
    return replace(request, computation=replace(request.computation, lanes=lanes), restart=renew_run_folder(request))


def _next(request: LaunchRequest, decision: RestartAll, world: Attempt) -> LaunchRequest:
    """The next world of ranks, in a run folder that is ready for it."""
    told = {
        "restart": decision.number,
        "lost": decision.loss.sentence,
        "ranks": decision.ranks or request.placement.ranks,
        "step": world.whence.step,
        "in_memory": world.whence.in_memory,
        "steps_again": world.whence.num_again(decision.loss),
        "no_snapshot": world.whence.why,
    }
    add_line(RunFolder(request.output.run_folder).restarts, told)
    lanes = world.observer.decided().get("lanes") if decision.ranks else request.computation.lanes
    fewer = replace(
        request,
        placement=replace(request.placement, ranks=decision.ranks or request.placement.ranks),
        computation=replace(request.computation, lanes=lanes or request.computation.lanes),
    )
    return replace(fewer, restart=replace(renew_run_folder(fewer), most=decision.most))


def _restart_fields(request: LaunchRequest, decision: RestartAll, world: Attempt) -> dict[str, Any]:
    """For the event of a restart."""
    return {
        "restart": decision.number,
        "ranks": decision.ranks or request.placement.ranks,
        "said": decision.loss.sentence,
        "from": world.whence.step,
        "in_memory": world.whence.in_memory,
        "steps_again": world.whence.num_again(decision.loss),
    }


def evidence_of(world: Attempt, folder: RunFolder) -> Evidence:
    """What is known about the culprit, who is on this node."""
    culprit = world.verdict.culprit
    rank = culprit.rank if culprit is not None else min(world.log_bytes)
    log = folder.log(rank)
    known = world.ending.known.get(rank, Known()) if culprit is not None else Known()
    return Evidence(
        tail=world.observer.tail(rank),
        log=log,
        stack=crash_stack(_written_since(log, world.log_bytes[rank])),
        kill_reason=known.why_killed,
        finding=EARLY_LEAVER if world.verdict.left_early else known.finding,
        folds=world.observer.folds_tracebacks,
    )


def _told_of(scene: Scene, world: Attempt, folder: RunFolder) -> Told:
    """How the ranks of this node ended, for all nodes."""
    verdict, culprit = world.verdict, world.verdict.culprit
    loss = scene.loss
    if loss is None and culprit is not None:
        loss = loss_of(culprit, scene.last, uses_lockstep=scene.uses_lockstep)
    return Told(
        exit_code=verdict.exit_code,
        interrupted_by=world.ending.interrupted_by,
        joined=world.ending.joined,
        uses_lockstep=scene.uses_lockstep,
        culprit=culprit,
        loss=loss,
        block=failure_block(verdict, evidence_of(world, folder)) if culprit is not None else "",
        newest_step=world.whence.step,
        gauges=tuple(tuple(listed(each)) for each in world.observer.own_gauges()),
    )


def _roster(seat: Seat, members: Sequence[Member]) -> dict[str, Any]:
    """Who takes part in a round, and which of them this node is, for the run folder."""
    nodes = [{"node": one.number, "host": one.record.host, "ranks": one.record.ranks} for one in members]
    return {"round": seat.round, "here": seat.node, "nodes": nodes}


def _gauges_elsewhere(cluster: Cluster) -> tuple[Gauges, ...]:
    """The last gauges of the ranks of other nodes, as these told them at the end; those of a lost node are missing."""
    ended = [cluster.view.ended.get(one.record.node, {}) for one in cluster.sayings.members_elsewhere()]
    return tuple(unlist(values) for told in ended for values in told.get("gauges", ()))
