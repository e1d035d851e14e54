"""One end for all nodes: what this node publishes about its ranks, and what the first node concludes from all of it.

here: verdict, loss, block  -> NodeEnd  ->  the log
on the first node: all ends -> whose fault it was, and what follows (recovery)  -> decided  ->  the log
everywhere: decided         -> the next round, or the end with one exit code and one block
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from samebits.launcher.blame import RankEnd, Verdict
from samebits.launcher.diagnosis.findings import Finding
from samebits.launcher.diagnosis.scene import RankScene
from samebits.launcher.diagnosis.wait_reports import WaitReporter, scenes_of
from samebits.launcher.nodes.cluster import Cluster
from samebits.launcher.nodes.roster import Member
from samebits.launcher.nodes.view import RunView
from samebits.launcher.recovery import Decision, Loss, Regroup, RestartAll, Stop
from samebits.launcher.terminal.failure_block import Block
from samebits.launcher.terminal.report import Line, Whence
from samebits.protocol.journal.failure import FailureKind
from samebits.protocol.journal.gauges import Gauges, listed, unlist
from samebits.protocol.records import plain, restored

LEFT_BEHIND = 2
"""The weight of a rank that only lost a peer."""
LOST_NODE = "the node is gone: its launcher has ended, or cannot be reached"
WITHOUT_IT = "Leave out --recover off: then the other nodes resume without it."


@dataclass(frozen=True)
class NodeEnd:
    """How the ranks of one node ended."""

    exit_code: int
    interrupted_by: int
    joined: bool
    uses_samebits: bool
    culprit: RankEnd | None
    """None if nothing went wrong."""
    loss: Loss | None
    """The same as what a restart would say."""
    block: str
    """The failure block; empty if nothing went wrong."""
    newest_step: int | None
    """That of the newest state or snapshot here; None when there is none."""
    gauges: tuple[tuple[float, ...], ...] = ()
    """The last ones of each rank."""


@dataclass(frozen=True)
class Whole:
    """How a round ended, on all nodes together."""

    end: NodeEnd
    """Of the node whose rank is at fault; by the first one if none is."""
    member: Member
    is_node: bool = False
    """Whether the node itself was lost."""

    @property
    def verdict(self) -> Verdict:
        """For `recovery`."""
        return Verdict(self.end.exit_code, self.end.culprit)

    @property
    def exit_code(self) -> int:
        """Not 0 if ranks were stopped, for whatever reason."""
        return self.end.exit_code

    @property
    def is_failure(self) -> bool:
        """Whether a rank failed by itself, or a user signal stopped the run."""
        return _weight(self.end) < LEFT_BEHIND


def whole(view: RunView) -> Whole:
    """Whose end explains the others'.

    A rank that failed comes before one that only lost a peer, and a lost node before both: its ranks are the missing peers.
    Of several the one that was in the log first.
    """
    lost = view.lost_members()
    if lost:
        return Whole(_of_lost_node(lost[0], view), lost[0], is_node=True)
    members = [one for one in view.members if one.record.node not in view.leaving] or view.members
    ends = {one.record.node: restored(NodeEnd, view.ended[one.record.node]) for one in members}
    order = sorted(members, key=lambda one: (_weight(ends[one.record.node]), _place(view.fallen, one)))
    return Whole(ends[order[0].record.node], order[0])


def _weight(end: NodeEnd) -> int:
    """Less for what explains more."""
    if end.interrupted_by:
        return 0
    if end.culprit is not None:
        failure = end.culprit.failure
        return LEFT_BEHIND if failure is not None and failure.kind is FailureKind.PEER else 1
    return LEFT_BEHIND + 1 if end.exit_code else LEFT_BEHIND + 2


def _place(fallen: Sequence[str], member: Member) -> int:
    return fallen.index(member.record.node) if member.record.node in fallen else len(fallen) + member.number


def _of_lost_node(member: Member, view: RunView) -> NodeEnd:
    first = view.members[: view.members.index(member)]
    rank = sum(one.record.ranks for one in first)
    others = [restored(NodeEnd, entry) for entry in view.ended.values()]
    steps = [one.newest_step for one in others if one.newest_step is not None]
    uses = any(one.uses_samebits for one in others)
    step = max((one.loss.step for one in others if one.loss is not None and one.loss.step is not None), default=None)
    loss = Loss(rank, "was lost", step, "", who=member.text)
    return NodeEnd(
        exit_code=1,
        interrupted_by=0,
        joined=any(one.joined for one in others),
        uses_samebits=uses,
        culprit=RankEnd(rank, 1, 0, 0, stopped=False, failure=None),
        loss=loss,
        block=Block(f"{member.text}: {LOST_NODE}", help=WITHOUT_IT).text,
        newest_step=max(steps, default=None),
    )


def regrouped(found: Whole, view: RunView, *, continues: bool) -> Regroup | None:
    """What follows where nodes are why the ranks ended, and no rank is; else None.

    Args:
        found: how the round ended.
        view: of the first node.
        continues: whether a run may continue without a lost node.
    """
    # `regroups` counts too: the node that was to come may have died meanwhile.
    for_others = bool(view.changes()) or view.regroups
    if (found.is_node and continues) or (for_others and found.exit_code and not found.is_failure):
        return Regroup(view.changes() or "the node that came or left is gone")
    return None


def newest_whence(here: Whence, view: RunView) -> Whence:
    """From where ranks would resume: what the run's first node has, or a newer snapshot in another one's memory."""
    steps = [step for end in view.ended.values() if (step := end["newest_step"]) is not None]
    newest = max(steps, default=None)
    return here if newest is None or newest <= (here.step or 0) else Whence(newest, in_memory=True)


_DECISIONS = {"stop": Stop, "regroup": Regroup, "restart": RestartAll}


def encode_decision(decision: Decision, end: NodeEnd, whence: Whence) -> dict[str, Any]:
    """For the log.

    Args:
        decision: what follows.
        end: of the node whose rank was at fault.
        whence: from where ranks would resume.
    """
    kind = next(name for name, kind in _DECISIONS.items() if isinstance(decision, kind))
    return {kind: plain(decision), "end": plain(end), "whence": plain(whence)}


def decode_decision(decided: Mapping[str, Any]) -> tuple[Decision, NodeEnd, Whence]:
    """The inverse."""
    name, kind = next((name, kind) for name, kind in _DECISIONS.items() if name in decided)
    return restored(kind, decided[name]), restored(NodeEnd, decided["end"]), restored(Whence, decided["whence"])


def verdict_everywhere(here: Verdict, end: NodeEnd) -> Verdict:
    """The verdict of this node when the run ends: the exit code of all, and the culprit, who may be elsewhere."""
    return replace(here, exit_code=end.exit_code, culprit=end.culprit)


EVERY_S = 1.0
"""Between two times that a node publishes its gauges: ten steps of a tenth of a second."""
NODES_PER_S = 1000
"""So many nodes publish theirs in a second; where there are more, each publishes them less often."""


@dataclass
class AllGauges:
    """Those of one round.

    Args:
        cluster: the nodes; None on one node.
    """

    cluster: Cluster | None
    _next_s: float = 0.0

    def publish(self, own: Sequence[Gauges], now_s: float) -> bool:
        """Publish those of this node, if it is time; whether it was."""
        if self.cluster is None or now_s < self._next_s:
            return False
        self._next_s = now_s + max(EVERY_S, len(self.cluster.view.members) / NODES_PER_S)
        self.cluster.notices.publish_of_round("gauges", gauges=[listed(each) for each in own])
        return True

    def of(self, own: Sequence[Gauges]) -> tuple[Gauges, ...]:
        """Those of all ranks, in their order, known on the run's first node; only this node's until all have published theirs."""
        if self.cluster is None:
            return tuple(own)
        others = self.cluster.notices.members_elsewhere()
        found = [self.cluster.notices.gauges.get(one.record.node, []) for one in others]
        if any(len(gauges) != one.record.ranks for gauges, one in zip(found, others, strict=True)):
            return tuple(own)
        return (*own, *(unlist(values) for gauges in found for values in gauges))


@dataclass
class OtherNodes:
    """Those of one round, in which this node takes part.

    Args:
        cluster: this node's part in the run.
        teller: decides what is published.
    """

    cluster: Cluster
    teller: WaitReporter
    _came: dict[str, tuple[Mapping[str, Any], float]] = field(default_factory=dict)
    """What each node published last, and when that was received."""

    def __post_init__(self) -> None:
        members = self.cluster.view.members
        firsts = [0, *accumulate(one.record.ranks for one in members)]
        own = self.cluster.record.node
        self._ranks = {
            one.record.node: range(first, first + one.record.ranks) for one, first in zip(members, firsts, strict=False)
        }
        self.homes = {rank: one.text for one in members for rank in self._ranks[one.record.node]}
        """The node of each rank, for people."""
        self.here = next(one.text for one in members if one.record.node == own)
        self._ranks.pop(own)

    def update(self) -> None:
        """Note what came just now; call it soon after it came."""
        for node, waits in self.cluster.view.waits.items():
            if self._came.get(node, ({}, 0.0))[0] is not waits:
                self._came[node] = waits, time.monotonic()

    def scenes(self) -> dict[int, RankScene]:
        """The ranks of other nodes, as far as these published them."""
        self.update()
        now, found = time.monotonic(), {}
        for node, ranks in self._ranks.items():
            waits, at = self._came.get(node, ({}, now))
            found.update(scenes_of(waits, ranks, now - at))
        return found

    def publish(self, scenes: Mapping[int, RankScene]) -> None:
        """Publish what the ranks here wait for, if others have to know.

        Args:
            scenes: of all ranks.
        """
        elsewhere = {rank for ranks in self._ranks.values() for rank in ranks}
        here = {rank: scene for rank, scene in scenes.items() if rank not in elsewhere}
        are_asked = any(scene.wait is not None for rank, scene in scenes.items() if rank in elsewhere)
        waits = self.teller.next(here, time.monotonic(), are_asked=are_asked)
        if waits is not None:
            self.cluster.notices.publish_of_round("waits", report=waits)

    def say(self, line: Line, finding: Finding | None = None, ranks: frozenset[int] = frozenset()) -> None:
        """Have a line about ranks of this node printed on the other nodes as well."""
        name = finding.name if finding is not None else ""
        self.cluster.notices.publish_notice(line.label, line.text, name, sorted(ranks))
