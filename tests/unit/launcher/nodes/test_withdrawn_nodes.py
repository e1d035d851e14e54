"""A node that cannot start tells the others why, and the first one decides whether the run can begin without it."""

import threading
import time
from dataclasses import replace

import pytest

from samebits.errors import UsageError
from samebits.launcher.nodes import node_star
from samebits.launcher.nodes.address import Choice, Interface, ListenAddress
from samebits.launcher.nodes.gathering import Gathering
from samebits.launcher.nodes.interfaces import PortTaken, listen
from samebits.launcher.nodes.key import Key
from samebits.launcher.nodes.node_star import NodeStar, in_time, refuse_all, withdraw
from samebits.launcher.nodes.roster import NodeRecord, Refused, withdrawal
from samebits.launcher.nodes.view import Notices, RunView
from samebits.protocol.records import plain
from tests.support.several_nodes import free_port
from tests.support.stars import Sky

KEY, OTHER_KEY = Key(b"a" * 32), Key(b"b" * 32)
WHY = withdrawal(1, "b", "There is no script x.py.", "Check the path.")
ENTRY = {"kind": "withdrawal", "node": "b0", "problem": WHY.problem, "fix": WHY.fix}
SAID = "Node 1 (host b) cannot start: There is no script x.py."
FIRST = NodeRecord("a0", "a", 0, is_host=True, least=3, most=3, ranks=1, threads=1)


def withdrawn(key):
    """A node 0 at which a node withdrew."""
    sky = Sky(KEY)
    withdrawing = threading.Thread(target=withdraw, args=(sky.place, key, "", WHY))
    withdrawing.start()
    while withdrawing.is_alive():
        sky.turn()
    sky.until(lambda: len(sky.heard["a"]) >= 2)
    sky.close()
    return sky


def test_a_node_that_cannot_start_is_heard_at_node_0():
    sky = withdrawn(KEY)
    assert sky.entries("a")[0] == {**ENTRY, "node": sky.entries("a")[0]["node"]}
    assert sky.host.nodes() == []


def test_nobody_without_the_key_withdraws_a_node():
    assert withdrawn(OTHER_KEY).kinds("a") == ["there", "unauthenticated"]


def chosen(port):
    return Choice(Interface("lo", "127.0.0.1"), ListenAddress("127.0.0.1", port))


def joining(node, port):
    """What a node is told that calls there."""
    star, heard = NodeStar(node, ListenAddress("127.0.0.1", port), KEY, "", 10.0), []
    while not (found := [one for one in heard if one["kind"] in ("failed", "refused")]):
        heard += star.read()
    star.close()
    return found[0]


@pytest.mark.parametrize(
    ("key", "printed", "fix"),
    [
        pytest.param(KEY, SAID, "On b: Check the path.", id="its sentence"),
        pytest.param(None, "cannot use its key, and says why.", "Look at what node 0 says", id="its own key"),
    ],
)
def test_a_first_node_that_cannot_start_tells_all_who_come_and_goes(monkeypatch, key, printed, fix):
    monkeypatch.setattr(node_star, "MOST_S", 0.5)
    port = free_port()
    holding = threading.Thread(target=refuse_all, args=(chosen(port), key, "", WHY, 2))
    holding.start()
    for node in "bc" if key else "b":
        message = joining(node, port)
        assert printed in message.get("why", message.get("problem", "")) and fix in message["fix"]
    holding.join(10)
    assert not holding.is_alive()
    listen(ListenAddress("127.0.0.1", port)).close()


def test_two_nodes_that_cannot_start_know_of_each_other_and_go():
    port = free_port()
    holding = threading.Thread(target=refuse_all, args=(chosen(port), KEY, "", WHY, 1))
    holding.start()
    in_time(lambda: withdraw(ListenAddress("127.0.0.1", port), KEY, "", WHY))
    holding.join(10)
    assert not holding.is_alive()


def test_a_port_that_is_taken_is_left_alone():
    with listen(ListenAddress("127.0.0.1", 0)) as taken, pytest.raises(PortTaken):
        refuse_all(chosen(taken.getsockname()[1]), KEY, "", WHY, 1)


def test_what_goes_wrong_while_others_are_told_is_not_said():
    def fail():
        raise UsageError("no", "way")

    began = time.monotonic()
    in_time(fail)
    assert time.monotonic() - began < 4


def gathered(record, entries):
    """What the first node decides, and what it says."""
    view, message, printed = RunView(), [], []

    def tell(entry):
        message.append(entry)
        view.take(entry)

    sayings = Notices(record, view, tell, lambda _label, text: printed.append(text), lambda _told: None)
    gathering = Gathering(record, view, tell, lambda _ranks, _lanes: None)
    for number, entry in enumerate(({"kind": "asks", "record": plain(record)}, *entries)):
        sayings.take(entry)
        view.take(entry)
        if view.round < 0:
            gathering.decide(None, 0.0, 100.0 + 10 * number)  # each time the last call is over
    return [(one["kind"], one.get("problem")) for one in message], printed


def test_a_run_that_needs_all_its_nodes_ends_on_all_with_the_sentence():
    asks = {"kind": "asks", "record": plain(replace(FIRST, node="c0", host="c", number=2, is_host=False))}
    assert gathered(FIRST, [asks, ENTRY]) == ([("refused", SAID)], [])


def test_who_asks_after_that_is_refused_too():
    view = RunView()
    gathering = Gathering(FIRST, view, view.take, lambda _ranks, _lanes: None)
    for entry in ({"kind": "asks", "record": plain(FIRST)}, ENTRY):
        view.take(entry)
    gathering.decide(None, 0.0, 100.0)
    view.take({"kind": "asks", "record": plain(replace(FIRST, node="c0", host="c", number=2, is_host=False))})
    refusal = view.refusal_of("c0")
    assert refusal is not None and refusal.problem == SAID


def test_a_run_that_can_do_without_it_says_so_and_begins():
    message, printed = gathered(replace(FIRST, least=1), [ENTRY])
    assert message[0][0] == "roster" and printed == [SAID]


def test_a_mistake_while_a_run_is_under_way_is_said_and_changes_nothing():
    alone = replace(FIRST, least=1, most=2)
    message, printed = gathered(alone, [ENTRY, ENTRY])
    assert [kind for kind, _ in message] == ["roster"] and printed == [SAID, SAID]


def test_what_the_world_does_to_a_node_has_no_fix_of_its_own():
    assert withdrawal(None, "b", "There is no script x.py.", "") == Refused(
        (),
        "The node on host b cannot start: There is no script x.py.",
        "Look at what b says, and start all nodes again.",
    )
