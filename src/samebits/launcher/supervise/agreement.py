"""The other nodes' part between two attempts: who takes part in the next one, and what all decide when one has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from samebits.errors import EnvironmentFailure
from samebits.launcher.blame import verdict_of
from samebits.launcher.choices import Recover, Verbosity
from samebits.launcher.diagnosis.wait_reports import WaitReporter
from samebits.launcher.folder import make_rank_files
from samebits.launcher.nodes.cluster import Cluster, Interrupted
from samebits.launcher.nodes.roster import Member
from samebits.launcher.recovery import Decision, Loss, Scene, Stop, decide, loss_of
from samebits.launcher.request import LaunchRequest
from samebits.launcher.signals import CaughtSignals
from samebits.launcher.supervise.all_nodes import (
    NodeEnd,
    OtherNodes,
    Whole,
    decode_decision,
    encode_decision,
    newest_whence,
    regrouped,
    verdict_everywhere,
    whole,
)
from samebits.launcher.supervise.attempt import Attempt, evidence_of, scene_of
from samebits.launcher.terminal.failure_block import failure_block
from samebits.launcher.terminal.report import Line, nodes_line
from samebits.launcher.terminal.terminal import Console
from samebits.protocol.journal.gauges import Gauges, listed, unlist
from samebits.protocol.meeting_place import Seat
from samebits.protocol.records import plain
from samebits.protocol.run_folder import RunFolder, add_line


@dataclass
class Agreement:
    """That of one run.

    Args:
        cluster: this node's part among the others.
        request: the run.
        console: where lines go.
        signals: a second one while this node waits for others ends the program.
    """

    cluster: Cluster
    request: LaunchRequest
    console: Console
    signals: CaughtSignals
    _logged_notes: set[str] = field(default_factory=set)

    def others(self) -> OtherNodes:
        """Those of the round that has begun."""
        return OtherNodes(self.cluster, WaitReporter(self.request.recovery.stall_after_s))

    def meet(self, request: LaunchRequest) -> LaunchRequest:
        """Wait for the other nodes; make this node's files for the ranks that it has among them."""
        try:
            seat = self.cluster.meet(self.signals)
        except Interrupted as signal:
            raise SystemExit(128 + signal.number) from None
        view = self.cluster.view
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
            self.console.line(nodes_line(request, [member.text for member in view.members]))
            for note in (note for note in view.notes if note not in self._logged_notes):
                self._logged_notes.add(note)
                self.console.line(Line("nodes", note))
        return request

    def agree(self, request: LaunchRequest, attempt: Attempt, history: list[Loss]) -> tuple[Attempt, Decision]:
        """Publish how the ranks here ended, and return what follows on all nodes."""
        cluster = self.cluster
        scene = scene_of(request, attempt)
        cluster.publish_ended(plain(_node_end(scene, attempt, RunFolder(request.output.run_folder))))
        if cluster.is_host:
            # The bits depend on lanes and threads, so those of the first round hold for all later ones.
            decided = attempt.observer.decided()
            cluster.lanes = decided.get("lanes") or cluster.lanes
            cluster.threads = decided.get("threads") or cluster.threads
            self._wait(cluster.view.is_over)
        if cluster.is_host and not cluster.cut:
            attempt.observer.last_gauges = _gauges_elsewhere(cluster)
            found = whole(cluster.view)
            cluster.publish_decision(
                encode_decision(
                    self._decide_for_all(scene, found, history),
                    found.end,
                    newest_whence(attempt.whence, cluster.view),
                )
            )
        self._wait(lambda: cluster.view.decision is not None)
        if cluster.view.decision is None:
            raise EnvironmentFailure(cluster.lost())
        decision, end, whence = decode_decision(cluster.view.decision)
        # The others continue without a node that leaves.
        if (by := attempt.ending.interrupted_by or cluster.left_by) and not isinstance(decision, Stop):
            ending = replace(attempt.ending, interrupted_by=by)
            return replace(attempt, ending=ending, verdict=verdict_of(ending.ends, by), block=""), Stop()
        first_node = "" if cluster.is_host else cluster.view.members[0].text
        verdict = verdict_everywhere(attempt.verdict, end)
        return replace(attempt, verdict=verdict, whence=whence, block=end.block, first_node=first_node), decision

    def _wait(self, is_there: Callable[[], bool]) -> None:
        """Wait for other nodes, whose ranks may run for long after those here have ended."""
        try:
            self.cluster.wait_for(is_there, self.signals)
        except Interrupted as signal:
            raise SystemExit(128 + signal.number) from None

    def _decide_for_all(self, scene: Scene, found: Whole, history: list[Loss]) -> Decision:
        """What follows a round; asked on the run's first node."""
        continues = self.request.recovery.recover is not Recover.OFF
        if (others := regrouped(found, self.cluster.view, continues=continues)) is not None:
            return others
        over = replace(scene, verdict=found.verdict, uses_samebits=found.end.uses_samebits, loss=found.end.loss)
        return decide(over, self.request.recovery, history)


def _node_end(scene: Scene, attempt: Attempt, folder: RunFolder) -> NodeEnd:
    """How the ranks of this node ended, for all nodes."""
    verdict, culprit = attempt.verdict, attempt.verdict.culprit
    loss = scene.loss
    if loss is None and culprit is not None:
        loss = loss_of(culprit, scene.last, uses_samebits=scene.uses_samebits)
    return NodeEnd(
        exit_code=verdict.exit_code,
        interrupted_by=attempt.ending.interrupted_by,
        joined=attempt.ending.joined,
        uses_samebits=scene.uses_samebits,
        culprit=culprit,
        loss=loss,
        block=failure_block(verdict, evidence_of(attempt, folder)) if culprit is not None else "",
        newest_step=attempt.whence.step,
        gauges=tuple(tuple(listed(each)) for each in attempt.observer.own_gauges()),
    )


def _roster(seat: Seat, members: Sequence[Member]) -> dict[str, Any]:
    """Who takes part in a round, and which of them this node is, for the run folder."""
    nodes = [{"node": one.number, "host": one.record.host, "ranks": one.record.ranks} for one in members]
    return {"round": seat.round, "here": seat.node, "nodes": nodes}


def _gauges_elsewhere(cluster: Cluster) -> tuple[Gauges, ...]:
    """The last gauges of the ranks of other nodes, as these published them at the end; those of a lost node are missing."""
    ended = [cluster.view.ended.get(one.record.node, {}) for one in cluster.notices.members_elsewhere()]
    return tuple(unlist(values) for end in ended for values in end.get("gauges", ()))
