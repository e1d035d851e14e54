"""What makes the ranks of one attempt end, and how: failures, a user signal, other nodes, and the orders to the nursery."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from samebits.launcher import blame
from samebits.launcher.blame import RankEnd
from samebits.launcher.choices import Verbosity
from samebits.launcher.nodes.cluster import Cluster
from samebits.launcher.nursery.handle import NurseryHandle
from samebits.launcher.request import LaunchRequest
from samebits.launcher.supervise.last_snapshots import LastSnapshots
from samebits.launcher.supervise.node_changes import Regrouping
from samebits.launcher.supervise.observer import Observer
from samebits.launcher.supervise.ranks import Ranks
from samebits.launcher.supervise.surroundings import Known
from samebits.launcher.terminal.report import asked_line, held_line
from samebits.launcher.terminal.terminal import Console
from samebits.protocol.journal.failure import Failure, FailureKind
from samebits.protocol.journal.signals import Asking
from samebits.protocol.nursery_messages import Signal


@dataclass
class Ending:
    """How all ranks ended."""

    ends: list[RankEnd]
    interrupted_by: int
    joined: bool
    nursery_is_gone: bool
    """Whether the nursery is gone, so that nothing can be started again."""
    saved: int | None = None
    """The step after which the run was saved because of the signal; None when it was not."""
    waited_s: float = 0.0
    """How long the ranks had time for that, if it was too short."""
    known: dict[int, Known] = field(default_factory=dict)
    """What is known about the end of each rank."""

    @property
    def problem(self) -> str:
        """The first failure of a rank by itself, in words; empty where there is none."""
        failures = [end.failure for end in self.ends if end.failure is not None]
        own = [one for one in failures if one.kind is not FailureKind.PEER]
        return min(own, key=lambda one: one.time_ns).mistake[0] if own else ""


@dataclass
class Interruption:
    """That of one attempt; at most one.

    Args:
        request: the run.
        asking: what rank 0 is asked through. It is open: somebody may remove the run's folder.
        console: where lines go.
    """

    request: LaunchRequest
    asking: Asking
    console: Console
    by: int = 0
    """The first signal; 0 when there was none."""
    is_requested: bool = False
    """Whether the ranks were asked to save and end, and have time for it."""
    waited_s: float = 0.0
    """The time of grace, if ranks did not use it."""

    def take(self, number: int, running: frozenset[int], *, may_ask: bool) -> blame.Plan:
        """Decide what follows a signal, and ask the ranks if they can be asked.

        Args:
            number: the signal.
            running: the ranks that have not ended.
            may_ask: whether nothing else is stopping the run.
        """
        again, self.by = bool(self.by), self.by or number
        now, grace_s = time.monotonic(), self.request.recovery.grace_s
        if again or not (may_ask and grace_s and running):
            self.is_requested = False
            return blame.after_signal(now, number, running, again)
        if not self.asking.listens:
            return blame.after_signal(now, number, running, again)
        self.asking.ask(number)
        self.is_requested = True
        if self.request.output.verbosity is not Verbosity.QUIET:
            self.console.line(asked_line(number, grace_s))
        return blame.after_signal(now + grace_s, number, running, again)

    def leave(self, number: int, running: frozenset[int]) -> blame.Plan:
        """The run continues without this node, and reports when the ranks here may end; they end by themselves if it is late."""
        self.by = number
        return blame.after_signal(time.monotonic() + self.request.recovery.grace_s, number, running, again=False)

    def gave_up(self, end: RankEnd, running: frozenset[int]) -> blame.Plan | None:
        """What follows when a rank does not end as it was asked to: the others would wait for it."""
        if not self.is_requested or (end.code in (0, 128 + self.by) and not end.signal and end.failure is None):
            return None
        self.is_requested = False
        self.waited_s = self.request.recovery.grace_s if end.stopped else 0.0
        return None if end.stopped else blame.after_signal(time.monotonic(), self.by, running, again=False)

    def ended(self, ends: Iterable[RankEnd]) -> int:
        """The signal that ended the run; 0 when all ranks came to the end of their script before they read of it."""
        return 0 if self.is_requested and all(end.code == 0 for end in ends) else self.by


@dataclass
class StopPlan:
    """Of one attempt."""

    sends: blame.Plan = ()
    _kind: FailureKind | None = None

    def __bool__(self) -> bool:
        """Whether the ranks are to end."""
        return bool(self.sends or self._kind)

    @property
    def is_for_a_peer(self) -> bool:
        """Whether all that is known here is that a rank lost another one."""
        return self._kind is FailureKind.PEER

    def fail(self, number: int, kind: FailureKind, running: frozenset[int]) -> None:
        """A rank has failed and may still run: the others are to end, unless they are already."""
        if self._takes(kind):
            self.sends = blame.after_failure(time.monotonic(), number, kind, running)

    def end_badly(self, running: frozenset[int], *, at_once: bool = False) -> None:
        """A rank has ended with a code other than 0, or by a signal.

        Args:
            running: the others.
            at_once: as in `blame.after_bad_exit`.
        """
        if self._takes(FailureKind.SCRIPT):
            self.sends = blame.after_bad_exit(time.monotonic(), running, at_once=at_once)

    def _takes(self, kind: FailureKind) -> bool:
        """Let the first failure decide; but a real one replaces the plan for a rank that only lost its peer."""
        if self._kind not in (None, FailureKind.PEER) or (self._kind is FailureKind.PEER and kind is FailureKind.PEER):
            return False
        self._kind = kind
        return True

    def due(self, now: float) -> blame.Plan:
        """What to send now, in order; it is not returned again."""
        ready, self.sends = blame.due(self.sends, now)
        return ready


class Orders:
    """The orders to one nursery. It may hang, or somebody may have stopped it."""

    def __init__(self, nursery: NurseryHandle, console: Console) -> None:
        self._nursery, self._saying = nursery, console
        self._asked: deque[float] = deque()
        """When each order that has no answer yet was sent."""
        self._killed: dict[int, float] = {}
        """When each rank was first to be killed."""
        self.gave_up = False
        """Whether the nursery was killed because it did not answer, or a rank did not end."""

    def kill(self, number: int) -> None:
        """End a rank in a way of which the supervisor takes no note: it is lost, as if somebody else had done it."""
        self.signal(signal.SIGKILL, frozenset({number}))

    def signal(self, number: int, ranks: Collection[int]) -> None:
        """Ask it to send a signal to ranks."""
        if ranks and self._nursery.send(Signal(number, tuple(sorted(ranks)))):
            self._asked.append(time.monotonic())
            if number == signal.SIGKILL:
                self._killed = dict.fromkeys(ranks, time.monotonic()) | self._killed

    def answered(self) -> None:
        """Note that the oldest order was carried out."""
        self._asked.popleft()

    def give_up(self, now: float, running: Mapping[int, int], *, user_waits: bool) -> float:
        """Kill a nursery that is too late, or whose ranks the kernel holds, with everything below it; return when to look again.

        Args:
            now: the time.
            running: the process of each rank that has not ended. Another process in a rank's place comes after a look without one.
            user_waits: whether somebody waits for the end.
        """
        self._killed = {rank: since for rank, since in self._killed.items() if rank in running}
        moments = {rank: since + blame.UNKILLABLE_S for rank, since in self._killed.items()}
        held = sorted(rank for rank, until in moments.items() if until <= now)
        late_at = [*moments.values()]
        if self._asked:
            late_at.append(self._asked[0] + (blame.ANSWER_S if user_waits else blame.PATIENT_ANSWER_S))
        if self.gave_up or not late_at:
            return float("inf")
        if now < min(late_at):
            return min(late_at)
        for rank in held:
            self._saying.line(held_line(rank, running[rank], blame.UNKILLABLE_S))
        self.gave_up = True
        self._nursery.kill()
        return float("inf")


@dataclass
class EndingRanks:
    """Of one attempt."""

    ranks: Ranks
    orders: Orders
    interruption: Interruption
    observer: Observer
    cluster: Cluster | None
    """The other nodes of the run, if there are any."""
    last: LastSnapshots
    plan: StopPlan = field(default_factory=StopPlan)
    _was_held: bool = False

    def __post_init__(self) -> None:
        of = self.interruption
        self._regrouping = Regrouping(of.request, of.asking, self.observer, of.console)

    @property
    def are_to_continue(self) -> bool:
        """Whether nothing makes the ranks end."""
        return not (self.interruption.by or self.plan)

    def fail(self, number: int, kind: FailureKind) -> None:
        """A rank has failed, and may still run: the others are to end."""
        if kind is FailureKind.WORKER:
            # The rank itself outlives its worker, and can leave the beginning of its step.
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
        """A user signal came to this node."""
        if self.cluster is not None and not self.interruption.by and self.cluster.may_leave:
            self.cluster.publish_leave()
            self.plan.sends = self.interruption.leave(number, self.ranks.running)
            return
        if self.cluster is not None:
            self.cluster.publish_signal(number)
        self._interrupt(number)

    def _interrupt(self, number: int) -> None:
        self.plan.sends = self.interruption.take(number, self.ranks.running, may_ask=not self.plan)

    def heed_others(self) -> None:
        """Do what other nodes make necessary, and publish what they have to know."""
        if (cluster := self.cluster) is None:
            return
        for number in cluster.signals():
            self._interrupt(number)
        # A node that leaves was interrupted itself, and still ends when the others say so.
        if cluster.must_end and (cluster.is_leaving or not self.interruption.by):
            self._heed_end(cluster)
            self.plan.end_badly(self.ranks.running, at_once=True)
        if self.are_to_continue and self.ranks.running and self._regrouping.is_due(cluster):
            cluster.publish_fall(regroups=True)
            self.last.give_up()
            self.plan.end_badly(self.ranks.running, at_once=True)
        if self.plan and not self.interruption.is_requested and not cluster.is_leaving:
            cluster.publish_fall(keeps=self.last.is_expected or self.plan.is_for_a_peer)

    def _heed_end(self, cluster: Cluster) -> None:
        """Let the ranks here take a last snapshot if all start again, and not if they do not, or at once."""
        if cluster.cut or cluster.is_leaving or not cluster.view.keeps:
            self.last.give_up()
        else:
            self.last.expect(time.monotonic())
            if cluster.view.lost_members():
                self.ranks.report_lost_node()

    def _held_until(self, now: float) -> float:
        """Until when the ranks are left alone although they are to end; 0.0 when they are not."""
        # A user does not wait for a last snapshot.
        return 0.0 if self.interruption.by else self.last.until(self.ranks.running, now)

    def send_due(self, now: float) -> None:
        """Send what is to be sent by now."""
        if self._held_until(now):
            self._was_held = True
            return
        if self._was_held:
            # Grace periods begin with the first signal, not when the plan was made.
            self._was_held, self.plan.sends = False, blame.from_now(self.plan.sends, now)
        for send in self.plan.due(now):
            self.send(send.signal, send.ranks & self.ranks.running)

    def send(self, number: int, ranks: frozenset[int]) -> None:
        """Send a signal to ranks."""
        self.ranks.sent(number, ranks)
        self.orders.signal(number, ranks)

    def pass_on(self) -> None:
        """Ctrl-C while the user is in the debugger of the first rank."""
        self.send(signal.SIGINT, frozenset({0}))

    @property
    def moments(self) -> tuple[float, ...]:
        """When something is to be sent."""
        if held_until := self._held_until(time.monotonic()):
            return (held_until,)
        return tuple(send.at_s for send in self.plan.sends)
