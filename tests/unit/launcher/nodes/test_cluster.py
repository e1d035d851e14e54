"""The launcher's part in several nodes: joining, refusals, signals, and the loss of the first node.

In place of connected stars stands a `Hub` that passes entries on as they do: to all nodes, in one order.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from samebits.errors import EnvironmentFailure, UsageError
from samebits.launcher.nodes.cluster import Cluster, Interrupted
from samebits.launcher.nodes.roster import NodeRecord
from samebits.launcher.nodes.wire import Loop
from samebits.protocol.meeting_place import Seat

LIMIT_S = 20.0


class Signals:
    """A person's signals, as `CaughtSignals` has them."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()

    def fileno(self) -> int:
        return self._ours.fileno()

    def take(self) -> list[int]:
        return list(self._ours.recv(16))

    def come(self, number: int) -> None:
        self._theirs.send(bytes([number]))

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()


class HubStar:
    """One node's side of the star, without sockets between nodes."""

    def __init__(self, hub: Hub) -> None:
        self._hub, self._told = hub, SimpleQueue[dict[str, Any]]()
        self.loop = Loop(0.2, lambda: None)
        self.is_open = True

    def fileno(self) -> int:
        return self.loop.fileno()

    def read(self) -> list[dict[str, Any]]:
        self.loop.turn()
        return [self._told.get() for _ in range(self._told.qsize())]

    def hear(self, message: dict[str, Any]) -> None:
        self._told.put(message)
        self.loop.wake()

    def publish(self, message: dict[str, Any]) -> None:
        self._hub.add(message)

    def close(self) -> None:
        if self.is_open:
            self.loop.close()
        self.is_open = False


class Hub:
    """The stars of all nodes, and the list behind them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.log: list[dict[str, Any]] = []
        self.stars: list[HubStar] = []

    def star(self) -> HubStar:
        """A node's side, which is in the star at once, and reads what was told before."""
        with self._lock:
            self.stars.append(star := HubStar(self))
            for entry in ({"kind": "there"}, *self.log):
                star.hear(entry)
        return star

    def add(self, entry: dict[str, Any]) -> None:
        """As some node."""
        with self._lock:
            self.log.append(entry)
            for star in self.stars:
                star.hear(entry)

    def kinds(self) -> list[str]:
        with self._lock:
            return [entry["kind"] for entry in self.log]


class Nodes:
    """Clusters on one hub."""

    def __init__(self) -> None:
        self.hub, self.signals, self.printed = Hub(), Signals(), []
        self.all: list[Cluster] = []

    def node(self, name: str, *, least: int = 2, most: int = 2, patience_s: float = LIMIT_S, **more: Any) -> Cluster:
        record = NodeRecord(
            name, f"host-{name}", more.pop("number", None), name == "a", least, most, more.pop("ranks", 2), 1, **more
        )
        cluster = Cluster(
            record=record,
            star=self.hub.star(),
            interface="eth0",
            patience_s=patience_s,
            say=lambda label, text: self.printed.append(f"{name} {label}: {text}"),
            on_notice=print,
            own="127.0.0.1",
        )
        self.all.append(cluster)
        return cluster

    def meet(self, *clusters: Cluster) -> list[Any]:
        """What `meet` returned or raised on each, all at the same time."""
        found: list[Any] = [None] * len(clusters)

        def one(place: int) -> None:
            try:
                found[place] = clusters[place].meet(self.signals)
            except Exception as error:
                found[place] = error

        threads = [threading.Thread(target=one, args=(place,), daemon=True) for place in range(len(clusters))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive(), self.hub.log
        return found

    def close(self) -> None:
        self.signals.close()
        for cluster in self.all:
            cluster.close()


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    made = Nodes()
    yield made
    made.close()


def hear(cluster: Cluster, is_so: Callable[[], bool]) -> None:
    """Read until something came."""
    while not is_so():
        assert select.select([cluster], [], [], LIMIT_S)[0], "it never came"
        cluster.read()


def test_nodes_that_meet_have_one_seat_each(nodes: Nodes) -> None:
    a, b = nodes.node("a", ranks=4), nodes.node("b", ranks=2)
    assert nodes.meet(a, b) == [Seat(0, 0, (4, 2), "eth0"), Seat(0, 1, (4, 2), "eth0")]
    assert [one.text for one in b.view.members] == ["node 0 (host host-a)", "node 1 (host host-b)"]
    assert a.view == b.view
    assert nodes.hub.kinds().count("roster") == 1
    assert (a.is_host, b.is_host) == (True, False)


def test_they_meet_again_for_the_next_round_with_the_lanes_of_the_first(nodes: Nodes) -> None:
    a, b = nodes.node("a"), nodes.node("b")
    nodes.meet(a, b)
    assert a.view.lanes is None
    a.lanes = 8
    assert [seat.round for seat in nodes.meet(a, b)] == [1, 1]
    assert (a.view.lanes, b.view.lanes) == (8, 8)


def test_a_run_that_has_enough_nodes_begins_after_the_last_call(nodes: Nodes) -> None:
    assert nodes.meet(nodes.node("a", least=1, most=4)) == [Seat(0, 0, (2,), "eth0")]


def test_a_node_that_comes_later_takes_part_in_the_next_round(nodes: Nodes) -> None:
    a = nodes.node("a", least=1, most=3)
    nodes.meet(a)
    b = nodes.node("b", least=1, most=3)
    hear(b, lambda: b.is_there)
    hear(a, lambda: bool(a.view.newcomers()))
    assert a.view.changes() == "host host-b joins"
    assert [(seat.round, seat.node) for seat in nodes.meet(a, b)] == [(1, 0), (1, 1)]


def test_a_node_that_is_gone_is_not_waited_for(nodes: Nodes) -> None:
    a, b = nodes.node("a", least=1, most=3), nodes.node("b", least=1, most=3)
    nodes.meet(a, b)
    nodes.hub.add({"kind": "gone", "node": "b"})
    hear(a, lambda: bool(a.view.lost_members()))
    assert a.must_end
    assert nodes.meet(a) == [Seat(1, 0, (2,), "eth0")]


def test_missing_nodes_are_waited_for_as_long_as_patience_lasts(nodes: Nodes) -> None:
    (error,) = nodes.meet(nodes.node("a", number=0, patience_s=0.05))
    assert isinstance(error, EnvironmentFailure)
    assert str(error) == "After 0 s waiting for 1 of 2 nodes: node 1 never connected."


def test_nodes_that_contradict_each_other_all_end_before_the_first_round(nodes: Nodes) -> None:
    errors = nodes.meet(nodes.node("a"), nodes.node("b", most=3))
    assert [type(error) for error in errors] == [UsageError, UsageError]
    assert {str(error) for error in errors} == {
        "The nodes disagree about how many they are: host-a has --nnodes 2, host-b --nnodes 2:3. Give all of them the same."
    }


def test_once_a_run_goes_on_only_the_newcomer_is_refused(nodes: Nodes) -> None:
    a, b = nodes.node("a", least=1, most=3), nodes.node("b", least=1, most=3)
    nodes.meet(a, b)
    other = nodes.node("d", least=1, most=4)
    hear(other, lambda: other.is_there)
    hear(a, lambda: bool(a.view.asking))
    seats = nodes.meet(a, b, other)
    assert [type(one) for one in seats] == [Seat, Seat, UsageError]
    assert (seats[0].num_nodes, set(a.view.refused)) == (2, {"d"})


def test_what_the_star_cannot_do_is_raised_as_it_says(nodes: Nodes) -> None:
    a, b = nodes.node("a"), nodes.node("b")
    for star, is_usage in zip(nodes.hub.stars, (True, False), strict=True):
        star.hear({"kind": "failed", "is_usage": is_usage, "why": "It cannot be.", "fix": "Do this."})
    usage, world = nodes.meet(a, b)
    assert (type(usage), str(usage)) == (UsageError, "It cannot be. Do this.")
    assert (type(world), str(world)) == (EnvironmentFailure, "It cannot be.")


def test_what_is_not_reached_yet_is_said(nodes: Nodes) -> None:
    a = nodes.node("a")
    nodes.hub.stars[0].hear({"kind": "unreachable", "why": "Nobody listens there."})
    hear(a, lambda: bool(nodes.printed))
    assert nodes.printed == ["a nodes: Nobody listens there."]


def test_a_persons_signal_ends_the_wait_for_others(nodes: Nodes) -> None:
    nodes.signals.come(15)
    (error,) = nodes.meet(nodes.node("a"))
    assert isinstance(error, Interrupted)
    assert error.number == 15


def test_the_loss_of_the_first_node_is_one_sentence(nodes: Nodes) -> None:
    b = nodes.node("b")
    nodes.hub.stars[0].hear({"kind": "cut", "why": "node 0 is gone (it has ended)"})
    (error,) = nodes.meet(b)
    assert isinstance(error, EnvironmentFailure)
    assert str(error) == "This node lost the others: node 0 is gone (it has ended)."
    assert b.must_end


def test_the_first_reason_for_a_cut_stays(nodes: Nodes) -> None:
    b = nodes.node("b")
    nodes.hub.stars[0].hear({"kind": "cut", "why": "node 0 is gone (it has ended)"})
    hear(b, lambda: bool(b.cut))
    nodes.hub.stars[0].hear({"kind": "cut", "why": ""})
    b.read()
    b.publish_fall()
    assert b.cut == "node 0 is gone (it has ended)"


def test_silence_is_said_of_the_node_by_its_number(nodes: Nodes) -> None:
    a, b = nodes.node("a"), nodes.node("b")
    nodes.meet(a, b)
    nodes.printed.clear()
    for kind in ("silent", "heard"):
        nodes.hub.stars[0].hear({"kind": kind, "node": "b"})
        hear(a, lambda kind=kind: len(nodes.printed) == 1 + (kind == "heard"))
    assert "node 1 (host host-b) has sent nothing for 5 s" in nodes.printed[0]
    assert nodes.printed[1] == "a nodes: node 1 (host host-b) is back"


def test_a_fall_ends_the_others_and_is_told_once(nodes: Nodes) -> None:
    a, b = nodes.node("a"), nodes.node("b")
    nodes.meet(a, b)
    b.publish_fall()
    b.publish_fall()
    hear(a, lambda: a.must_end)
    hear(b, lambda: bool(b.view.fallen))
    assert not b.must_end, "it is its own doing"
    assert nodes.hub.kinds().count("fall") == 1
    nodes.meet(a, b)
    assert not a.must_end
    b.publish_fall()
    hear(a, lambda: a.must_end)


def test_a_signal_reaches_the_other_nodes_once_and_not_its_own(nodes: Nodes) -> None:
    a, b = nodes.node("a"), nodes.node("b")
    nodes.meet(a, b)
    b.publish_signal(15)
    hear(a, lambda: bool(a.view.signals))
    hear(b, lambda: bool(b.view.signals))
    assert (a.signals(), a.signals(), b.signals()) == ([15], [], [])


def test_a_node_may_leave_while_enough_others_stay_and_the_first_one_never(nodes: Nodes) -> None:
    a, b, c = (nodes.node(name, least=2, most=3) for name in "abc")
    nodes.meet(a, b, c)
    assert (a.may_leave, b.may_leave, c.may_leave) == (False, True, True)
    b.publish_leave()
    assert b.is_leaving
    hear(c, lambda: bool(c.view.leaving))
    assert not c.may_leave


def test_an_end_and_a_decision_reach_all(nodes: Nodes) -> None:
    a, b = nodes.node("a"), nodes.node("b")
    nodes.meet(a, b)
    for one in (a, b):
        one.publish_ended({"exit_code": 0})
    a.wait_for(a.view.is_over)
    a.publish_decision({"stop": {}})
    b.wait_for(lambda: b.view.decision is not None)
    assert b.view.decision == {"stop": {}}
    assert not b.cut


def test_a_signal_while_a_node_waits_for_what_follows_ends_all_only_if_it_must(nodes: Nodes) -> None:
    a, b, c = (nodes.node(name, least=2, most=3) for name in "abc")
    nodes.meet(a, b, c)
    nodes.signals.come(15)
    b.wait_for(lambda: bool(b.view.leaving), nodes.signals)
    assert (b.left_by, b.view.signals) == (15, [])
    hear(c, lambda: bool(c.view.leaving))
    nodes.signals.come(15)
    c.wait_for(lambda: bool(c.view.signals), nodes.signals)
    assert (c.left_by, [number for _, number in c.view.signals]) == (0, [15]), "two are needed"


def test_waiting_ends_when_the_first_node_is_lost(nodes: Nodes) -> None:
    b = nodes.node("b")
    nodes.hub.stars[0].hear({"kind": "cut", "why": ""})
    b.wait_for(lambda: False)
    assert b.cut == "the run's first node cannot be reached any more"


def test_a_decision_is_seen_although_the_next_round_began_in_the_same_moment(nodes: Nodes) -> None:
    a, b = nodes.node("a", least=1), nodes.node("b", least=1)
    nodes.meet(a, b)
    nodes.hub.add({"kind": "decision", "round": 0, "node": "a", "decided": {"regroup": {}}})
    nodes.hub.add({"kind": "roster", "round": 1, "threads": 1, "lanes": None, "members": [[0, "a"]]})
    b.wait_for(lambda: b.view.decision is not None)
    assert (b.view.round, b.view.decision) == (0, {"regroup": {}})
    hear(b, lambda: b.view.round == 1)
