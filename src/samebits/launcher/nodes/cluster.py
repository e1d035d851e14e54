"""A launcher's part in a run on several nodes: it joins, waits for the others, publishes what happens here and reads the rest.

What is decided for all is decided here on the run's first node: which nodes make a round (`roster`), and, by whoever calls
`decide`, what follows a round.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from samebits.errors import EnvironmentFailure, UsageError
from samebits.launcher.nodes.gathering import Gathering
from samebits.launcher.nodes.liveness import Liveness
from samebits.launcher.nodes.meeting import NodeMeeting, hold_keys
from samebits.launcher.nodes.node_star import LOOK_THERE
from samebits.launcher.nodes.preflight import Reach
from samebits.launcher.nodes.roster import Member, NodeRecord, missing
from samebits.launcher.nodes.star import HostStar, Star
from samebits.launcher.nodes.streams import Exit
from samebits.launcher.nodes.view import SAY_AGAIN_S, Notices, RunView
from samebits.machine.clocks import readable
from samebits.protocol.meeting_place import Seat
from samebits.protocol.records import plain

SAY_EVERY_S = 5.0
"""How often it is looked who is missing; the same is said again after `SAY_AGAIN_S`."""
LOOK_S = 0.1
"""How often the first node looks whether the last call is over."""
ANOTHER_PORT = "If another program has this port, name another one in --rdzv-endpoint on all nodes."
STOPPED_S = 30.0
"""How long nodes are waited for whose launcher is stopped, at the end of a round."""


class Interrupted(Exception):  # noqa: N818 - an event as much as an error
    """A user signal came while this node waited for others."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@dataclass
class Cluster:
    """One node's part.

    Args:
        record: what this node publishes about itself.
        star: its side of it.
        interface: for exchanges between nodes.
        patience_s: how long to wait for missing nodes.
        say: prints a line: its label and its text.
        on_notice: prints a notice of another node.
        hosts: the names of all nodes in the order of their numbers, where a launcher lists them.
        check_total: raises UsageError when the run cannot have so many ranks on its nodes, with the lanes that it has had so far.
    """

    record: NodeRecord
    star: Star
    interface: str
    patience_s: float
    say: Callable[[str, str], None]
    on_notice: Callable[[dict[str, Any]], None]
    hosts: tuple[str, ...] = ()
    check_total: Callable[[Sequence[int], int | None], None] = lambda _ranks, _lanes: None
    view: RunView = field(default_factory=RunView)
    lanes: int | None = None
    """Those of the rounds before, which the next one keeps; known on the first node."""
    threads: int = 0
    """Likewise; 0 before the first round."""
    own: str = ""
    """This node's address for exchanges with others."""
    is_there: bool = False
    """Whether it is in the star."""
    left_by: int = 0
    """The signal because of which this node leaves although its ranks have ended already; 0 while there is none."""
    cut: str = ""
    """Why this node has lost the run's first one; empty as long as it has not."""
    _not_there: str = ""
    """Why the first node has not been reached yet."""
    _said: str = ""
    """What was said last of those that are missing."""
    _unread: deque[dict[str, Any]] = field(default_factory=deque)
    _published: set[tuple[str, int]] = field(default_factory=set)
    _heard: int = 0

    def __post_init__(self) -> None:
        self._gathering = Gathering(self.record, self.view, self._publish, self.check_total)
        self.notices = Notices(self.record, self.view, self._publish, self.say, self.on_notice)
        """What nodes publish about their ranks while all is well, or somebody is waited for."""
        self.liveness = Liveness(self.record.node, self.view, self.star, self._publish, self.own)
        """Which of them are there."""
        self._exit = Exit(self.star) if isinstance(self.star, HostStar) else None
        if isinstance(self.star, HostStar):
            hold_keys(self.star)
        self._reach = Reach(self.record.node, self.own, self._publish, self.star.loop)

    def fileno(self) -> int:
        """For a selector."""
        return self.star.fileno()

    @property
    def is_host(self) -> bool:
        """Whether this node decides for all."""
        return self.record.is_host

    @property
    def has_begun(self) -> bool:
        """Whether there was a round with this node."""
        return self._member() is not None

    def knowing(self) -> int:
        """How many nodes know why this one ends: all, but where all that came were refused and others may still come."""
        refused, most = len(self.view.refused), self.record.most
        return refused + len(self.view.withdrawn) if self.is_host and refused and not self.has_begun else most

    # What happens

    def read(self, is_there: Callable[[], bool] = lambda: False) -> None:
        """Take what happened, up to what makes `is_there` true; does not block."""
        self._unread += self.star.read()
        while self._unread:
            self._take(self._unread.popleft())
            # [Note: a decision is seen before the round that follows it]
            # Both may come in one reading, and the roster would clear the decision.
            if is_there():
                self.star.loop.wake()
                break
        # [Note: nobody is turned away while a node is silent]
        # It may be lost, and the newcomer be the same command on another machine.
        if self.is_host and not self.liveness.silent:
            self._gathering.turn_away()
        self._reach.look(time.monotonic())
        if self.is_there:
            self.liveness.look()
            self.cut = self.cut or self.liveness.lost_first

    def _take(self, event: dict[str, Any]) -> None:
        match event.get("kind"):
            case "there":
                self.is_there = True
                self._publish({"kind": "asks", "record": plain(self.record)})
            case "failed":
                fix = ANOTHER_PORT if self.record.number == 0 and event["fix"] == LOOK_THERE else event["fix"]
                raise UsageError(event["why"], fix) if event["is_usage"] else EnvironmentFailure(event["why"])
            case "unreachable":
                self._not_there = self._said = event["why"]
                self.say("nodes", event["why"])
            case "unauthenticated":
                self.say("nodes", f"connection from {event['address']} rejected: wrong key")
            case "silent" | "heard":
                self.liveness.take(event)
                self.notices.report_silence(event)
            case "cut":
                self.cut = self.cut or event["why"] or "the run's first node cannot be reached any more"
            case _:
                self.notices.take(event)
                self.view.take(event)
                self._reach.take(event)

    def _publish(self, entry: dict[str, Any]) -> None:
        try:
            self.star.publish(entry)
        except ValueError as error:
            raise EnvironmentFailure(f"The other nodes cannot be informed: {error}.") from None

    # Joining

    def meet(self, signals: Any) -> Seat:
        """Wait until a round begins with this node; ask for it first, if that was not done.

        Args:
            signals: `fileno` and `take`, as `CaughtSignals` has them.

        Returns:
            This node's seat. `view` has what the nodes agreed on.

        Raises:
            UsageError: when this node cannot take part in this run.
            EnvironmentFailure: when others do not come, or the run's first node is lost.
            Interrupted: at a user signal.
        """
        began = looked = said_at = time.monotonic()
        round_before = self.view.round
        self.notices.gauges.clear()
        if round_before >= 0:
            self._said = ""
            self._publish({"kind": "asks", "record": plain(self.record)})
        self._gathering.enough_since = 0.0
        while True:
            self._check()
            if self.view.round > round_before and self._member() is not None:
                return self._seat()
            now = time.monotonic()
            if self.is_host and self.record.node in self.view.asking:
                self._gathering.decide(self.lanes, began, now, self.threads)
            if now - began > self.patience_s:
                raise EnvironmentFailure(f"After {self.patience_s:.0f} s {self._missing()}.")
            if now - looked >= SAY_EVERY_S:
                looked, text = now, self._missing() if self.is_there else self._not_there
                if text and (text != self._said or now - said_at >= SAY_AGAIN_S):
                    self._said, said_at = text, now
                    self.say("nodes", text)
            # The last call ends by the clock; everything else wakes the star.
            until = LOOK_S if self._gathering.enough_since else looked + SAY_EVERY_S - now
            ready = readable([self, signals], until)
            if signals in ready and (numbers := signals.take()):
                raise Interrupted(numbers[0])
            if self in ready:
                self.read()

    def _check(self) -> None:
        """Raise where this node cannot take part any more."""
        if (refused := self.view.refusal_of(self.record.node)) is not None:
            raise UsageError(refused.problem, refused.fix)
        if self.cut:
            raise EnvironmentFailure(self.lost() if self.has_begun else f"This node lost the others: {self.cut}.")

    def _missing(self) -> str:
        if self.view.members and self._member() is None:
            return "the run continues; this node takes part from the next start of the ranks that has a place for it"
        if self.view.checks and not self.view.checks[-1].is_over(self.view.gone):
            return "the nodes try whether they reach each other"
        members = [one for one in self.view.members if one.record.node not in self.view.leaving]
        return missing(self._gathering.asking(), members, self.hosts)

    def _member(self) -> Member | None:
        return next((one for one in self.view.members if one.record.node == self.record.node), None)

    def _seat(self) -> Seat:
        members = self.view.members
        place = next(place for place, one in enumerate(members) if one.record.node == self.record.node)
        sizes = tuple(one.record.ranks for one in members)
        return Seat(self.view.round, place, sizes, self.interface)

    def meeting(self) -> NodeMeeting:
        """Where the ranks here meet those of other nodes in this round; the caller closes it."""
        return NodeMeeting(self.star, self.view.round, self._exit)

    # During a round

    @property
    def must_end(self) -> bool:
        """Whether the ranks here are to end because of what happened elsewhere."""
        return bool(self.cut) or self.view.must_end(self.record.node)

    def publish_fall(self, *, regroups: bool = False, keeps: bool = False) -> None:
        """Ranks here end badly, or are to end: the others' are to end too.

        Args:
            regroups: whether nothing is wrong, and all start again with other nodes.
            keeps: whether all will start again, and ranks that can are to keep their step's beginning first.
        """
        self._publish_once("fall", regroups=regroups, keeps=keeps)

    @property
    def may_leave(self) -> bool:
        """Whether the others could continue without this node."""
        there = [one for one in self.view.members if one.record.node not in self.view.gone | self.view.leaving]
        return not self.is_host and len(there) > self.record.least

    @property
    def is_leaving(self) -> bool:
        """Whether this node published that it leaves."""
        return ("leaves", 0) in self._published

    def publish_leave(self) -> None:
        """This node is to end, and the others continue."""
        self._published.add(("leaves", 0))
        self._publish({"kind": "leaves", "node": self.record.node})

    def publish_saved(self, place: str, step: int | None) -> None:
        """On the first node: the step of the newest state on its disk; published when it changed."""
        if self.is_host and step is not None and (place, step) != self.view.saved:
            self._publish({"kind": "saved", "place": place, "step": step})

    def lost(self) -> str:
        """What people read once this node has lost the run's first one."""
        what = "This node was given up" if self.cut.startswith("node 0 gave") else "This node lost the run's first one"
        rest = "Node 0 has saved no state: without it the same commands begin anew."
        if self.view.saved is not None:
            place, step = self.view.saved
            rest = f"Node 0's newest state is of step {step}, in {place} there: the same commands resume from it."
        fix = "While node 0 runs, the same command joins it again from here, once the network carries what both send"
        return f"{what}, and the run ends here: {self.cut}. {fix}. {rest}"

    def take_signal(self, number: int) -> None:
        """A user signal came here: leave if the others could continue, else let all end."""
        if self.may_leave:
            self.left_by = number
            self.publish_leave()
        else:
            self.publish_signal(number)

    def publish_signal(self, number: int) -> None:
        """A user signal came here, because of which all are to end."""
        self._publish({"kind": "signal", "node": self.record.node, "number": number})

    def signals(self) -> list[int]:
        """Signals that came to other nodes since the last call."""
        new = self.view.signals[self._heard :]
        self._heard = len(self.view.signals)
        return [number for node, number in new if node != self.record.node]

    def publish_ended(self, end: dict[str, Any]) -> None:
        """All ranks here have ended."""
        self._publish_once("ended", report=end)

    def publish_decision(self, decided: dict[str, Any]) -> None:
        """What follows this round, on all nodes."""
        self._publish_once("decision", decided=decided)

    def _publish_once(self, kind: str, **fields: Any) -> None:
        if (kind, self.view.round) not in self._published:
            self._published.add((kind, self.view.round))
            self._publish({"kind": kind, "round": self.view.round, "node": self.record.node, **fields})

    def wait_for(self, is_there: Callable[[], bool], signals: Any = None) -> None:
        """Read until `is_there`, or the run's first node is lost; nodes that are stopped are not waited for without end.

        Args:
            is_there: asked after each reading.
            signals: as for `meet`. After the first one this node leaves, or where it may not, all end. None: they are left
                alone.

        Raises:
            Interrupted: at a second signal.
        """
        has_told, began = False, time.monotonic()
        while not is_there() and not self.cut:
            ready = readable([self, *([signals] if signals is not None else [])], SAY_EVERY_S)
            # A launcher that is stopped never publishes how its ranks ended, and its connection stays open.
            if not ready and time.monotonic() - began > STOPPED_S:
                self.cut = self.notices.give_up_stopped()
            for number in signals.take() if signals in ready else ():
                if has_told:
                    raise Interrupted(number)
                has_told = True
                self.take_signal(number)
            if self in ready:
                self.read(is_there)

    def close(self) -> None:
        """Leave the run, once the others have read what was published."""
        self._reach.close()
        self.star.close()
