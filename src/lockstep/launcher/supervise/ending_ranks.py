"""What makes the ranks of one world end: their own failures, a person's signal, other nodes. `stopping` says what to send when."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field

from lockstep.launcher import stopping
from lockstep.launcher.nodes.cluster import Cluster
from lockstep.launcher.supervise.interruption import Interruption
from lockstep.launcher.supervise.last_snapshots import LastSnapshots
from lockstep.launcher.supervise.orders import Orders
from lockstep.launcher.supervise.ranks import Ranks
from lockstep.launcher.supervise.regrouping import Regrouping
from lockstep.launcher.supervise.stop_plan import StopPlan
from lockstep.launcher.verdict import RankEnd
from lockstep.protocol.journal.failure import Failure, FailureKind


@dataclass
class EndingRanks:
    """Of one world of ranks."""

    ranks: Ranks
    orders: Orders
    interruption: Interruption
    regrouping: Regrouping
    cluster: Cluster | None
    """The other nodes of the run, if there are any."""
    last: LastSnapshots
    plan: StopPlan = field(default_factory=StopPlan)
    _was_held: bool = False

    @property
    def are_to_go_on(self) -> bool:
        """Whether nothing makes the ranks end."""
        return not (self.interruption.by or self.plan)

    def fail(self, number: int, kind: FailureKind) -> None:
        """A rank has failed, and may still run: the others are to end."""
        if kind is FailureKind.WORKER:
            self._expect_last(RankEnd(number, 1, 0, 0, False, self.ranks.failure_of(number)))
        if not self.interruption.by:
            self.plan.fail(number, kind, self.ranks.running)

    def stall(self, failure: Failure) -> None:
        """A rank holds others up for too long, and all are to end because of it."""
        self.ranks.reported(failure.rank, failure)
        self.fail(failure.rank, failure.kind)

    def ended(self, end: RankEnd) -> None:
        """A rank has ended."""
        self._expect_last(end)
        self.plan.sends = self.interruption.gave_up(end, self.ranks.running) or self.plan.sends
        if end.failure is not None:
            self.fail(end.rank, end.failure.kind)
        elif end.code and not end.stopped and not self.interruption.by:
            self.plan.end_badly(self.ranks.running, at_once=bool(end.signal))

    def _expect_last(self, end: RankEnd) -> None:
        if not self.plan or self.plan.is_for_a_peer:
            self.last.expect_after(end, time.monotonic())

    def take_signal(self, number: int) -> None:
        """A person's signal came to this node."""
        if self.cluster is not None and not self.interruption.by and self.cluster.may_leave:
            self.cluster.tell_leave()
            self.plan.sends = self.interruption.leave(number, self.ranks.running)
            return
        if self.cluster is not None:
            self.cluster.tell_signal(number)
        self._interrupt(number)

    def _interrupt(self, number: int) -> None:
        self.plan.sends = self.interruption.take(number, self.ranks.running, may_ask=not self.plan)

    def heed_others(self) -> None:
        """Do what other nodes make necessary, and tell them what they have to know."""
        if (cluster := self.cluster) is None:
            return
        for number in cluster.signals():
            self._interrupt(number)
        if cluster.must_end and (cluster.is_leaving or not self.interruption.by):
            self._heed_end(cluster)
            self.plan.end_badly(self.ranks.running, at_once=True)
        if self.are_to_go_on and self.ranks.running and self.regrouping.is_due(cluster):
            cluster.tell_fall(regroups=True)
            self.last.give_up()
            self.plan.end_badly(self.ranks.running, at_once=True)
        if self.plan and not self.interruption.is_asked and not cluster.is_leaving:
            cluster.tell_fall(keeps=self.last.is_expected or self.plan.is_for_a_peer)

    def _heed_end(self, cluster: Cluster) -> None:
        """Let the ranks here take a last snapshot if all start again, and not if they do not, or at once."""
        if cluster.cut or cluster.is_leaving or not cluster.view.keeps:
            self.last.give_up()
        else:
            self.last.expect(time.monotonic())
            if cluster.view.lost_members():
                self.ranks.tell_lost_node()

    def _held_until(self, now: float) -> float:
        """Until when the ranks are left alone although they are to end; 0.0 when they are not."""
        return 0.0 if self.interruption.by else self.last.until(self.ranks.running, now)

    def send_due(self, now: float) -> None:
        """Send what is to be sent by now."""
        if self._held_until(now):
            self._was_held = True
            return
        if self._was_held:
            self._was_held, self.plan.sends = False, stopping.from_now(self.plan.sends, now)
        for send in self.plan.due(now):
            self.send(send.signal, send.ranks & self.ranks.running)

    def send(self, number: int, ranks: frozenset[int]) -> None:
        """Send a signal to ranks."""
        self.ranks.sent(number, ranks)
        self.orders.signal(number, ranks)

    def pass_on(self) -> None:
        """Ctrl-C while a person is in the debugger of the first rank."""
        self.send(signal.SIGINT, frozenset({0}))

    @property
    def moments(self) -> tuple[float, ...]:
        """When something is to be sent."""
        if held_until := self._held_until(time.monotonic()):
            return (held_until,)
        return tuple(send.at_s for send in self.plan.sends)
