"""A node that cannot start tells the others why, and the first one decides whether the run can begin without it."""

import threading
import time
from dataclasses import replace

import pytest

from lockstep.errors import UsageError
from lockstep.nodes.address import Place
from lockstep.nodes.farewell import hold, in_time, knock
from lockstep.nodes.files import check_files, in_all
from lockstep.nodes.gate import Gate, NodeWithdrew, StrangerCame
from lockstep.nodes.gathering import Gathering
from lockstep.nodes.interfaces import PortTaken, listen
from lockstep.nodes.key import Key
from lockstep.nodes.record import NodeRecord
from lockstep.nodes.roster import Refused
from lockstep.nodes.sayings import Sayings
from lockstep.nodes.tunnel import Tunnel
from lockstep.nodes.view import RunView
from lockstep.nodes.withdrawal import MOST_CHARACTERS, Withdrawal
from tests.support.several_nodes import free_port

KEY, OTHER_KEY = Key(b"a" * 32), Key(b"b" * 32)
WHY = Withdrawal(1, "b", "There is no script x.py.", "Check the path.")
SAID = "Node 1 (host b) cannot start: There is no script x.py."
FIRST = NodeRecord("a0", "a", 0, is_host=True, least=3, most=3, ranks=1, threads=1)


def test_a_node_that_cannot_start_is_heard_at_the_gate():
    listener, events, heard = listen(Place("127.0.0.1", 0)), [], threading.Event()

    def note(event):
        events.append(event)
        heard.set()

    place = Place(*listener.getsockname())
    gate = Gate(listener, 0, KEY, note).start()
    try:
        knock(place, KEY, "", WHY)
        assert heard.wait(10)
    finally:
        gate.close()
    (event,) = events
    assert isinstance(event, NodeWithdrew) and Withdrawal.of(event.hello) == WHY
    assert gate.nodes() == {}


def test_the_longest_sentence_fits():
    long = replace(WHY, problem="\N{SNOWMAN}" * 5000, fix="\N{SNOWMAN}" * 5000)
    listener, events = listen(Place("127.0.0.1", 0)), []
    place = Place(*listener.getsockname())
    gate = Gate(listener, 0, KEY, events.append).start()
    try:
        knock(place, KEY, "", Withdrawal.of(long.entry()))
    finally:
        gate.close()
    assert Withdrawal.of(events[0].hello).problem == long.problem[:MOST_CHARACTERS]


def test_nobody_without_the_key_withdraws_a_node():
    listener, events = listen(Place("127.0.0.1", 0)), []
    place = Place(*listener.getsockname())
    gate = Gate(listener, 0, KEY, events.append).start()
    try:
        with pytest.raises(UsageError, match="key is not that of node 0"):
            knock(place, OTHER_KEY, "", WHY)
    finally:
        gate.close()
    assert set(events) <= {StrangerCame("127.0.0.1")}


def test_a_first_node_that_cannot_start_tells_all_who_come_and_goes():
    place, refused = Place("127.0.0.1", free_port()), WHY.refused()
    holding = threading.Thread(target=hold, args=(place, KEY, "", refused, 2))
    holding.start()
    for node in ("b0", "c0"):
        with pytest.raises(UsageError) as told:
            Tunnel(place, KEY, {"node": node}, lambda _event: None).start(10)
        assert (told.value.problem, told.value.fix) == (SAID, "On b: Check the path.")
    holding.join(10)
    assert not holding.is_alive()
    listen(place).close()


def test_two_nodes_that_cannot_start_know_of_each_other_and_go():
    place = Place("127.0.0.1", free_port())
    holding = threading.Thread(target=hold, args=(place, KEY, "", WHY.refused(), 1))
    holding.start()
    in_time(lambda: knock(place, KEY, "", WHY))
    holding.join(10)
    assert not holding.is_alive()


def test_a_port_that_is_taken_is_left_alone():
    with listen(Place("127.0.0.1", 0)) as taken, pytest.raises(PortTaken):
        hold(Place(*taken.getsockname()), KEY, "", WHY.refused(), 1)


def test_what_goes_wrong_while_others_are_told_is_not_said():
    def fail():
        raise UsageError("no", "way")

    began = time.monotonic()
    in_time(fail)
    assert time.monotonic() - began < 4


def gathered(record, entries):
    """What the first node decides, and what it says."""
    view, told, said = RunView(), [], []

    def tell(entry):
        told.append(entry)
        view.take(entry)

    sayings = Sayings(record, view, tell, lambda _label, text: said.append(text), lambda _told: None)
    gathering = Gathering(record, view, tell, lambda _ranks, _lanes: None)
    for number, entry in enumerate(({"kind": "asks", "record": record.encode()}, *entries)):
        sayings.take(entry)
        view.take(entry)
        if view.round < 0:
            gathering.decide(None, 0.0, 100.0 + 10 * number)  # each time the last call is over
    return [(one["kind"], one.get("problem")) for one in told], said


def test_a_run_that_needs_all_its_nodes_ends_on_all_with_the_sentence():
    asks = {"kind": "asks", "record": replace(FIRST, node="c0", host="c", number=2, is_host=False).encode()}
    assert gathered(FIRST, [asks, WHY.entry()]) == ([("refused", SAID)], [])


def test_who_asks_after_that_is_refused_too():
    view = RunView()
    gathering = Gathering(FIRST, view, view.take, lambda _ranks, _lanes: None)
    for entry in ({"kind": "asks", "record": FIRST.encode()}, WHY.entry()):
        view.take(entry)
    gathering.decide(None, 0.0, 100.0)
    view.take({"kind": "asks", "record": replace(FIRST, node="c0", host="c", number=2, is_host=False).encode()})
    refusal = view.refusal_of("c0")
    assert refusal is not None and refusal.problem == SAID


def test_a_run_that_can_do_without_it_says_so_and_begins():
    told, said = gathered(replace(FIRST, least=1), [WHY.entry()])
    assert told[0][0] == "roster" and said == [SAID]


def test_a_mistake_while_a_run_is_under_way_is_said_and_changes_nothing():
    alone = replace(FIRST, least=1, most=2)
    told, said = gathered(alone, [WHY.entry(), replace(WHY, fix="").entry()])
    assert [kind for kind, _ in told] == ["roster"] and said == [SAID, SAID]


def test_what_the_world_does_to_a_node_has_no_fix_of_its_own():
    assert replace(WHY, number=None, fix="").refused() == Refused(
        (WHY.node,),
        "The node on host b cannot start: There is no script x.py.",
        "Look at what b says, and start all nodes again.",
    )


def test_a_first_node_that_may_not_open_enough_files_is_refused():
    check_files([2, 2], in_all([2, 2]))
    check_files([8] * 1000, -1)
    with pytest.raises(
        UsageError, match=r"Node 0 needs 67 open files for 2 nodes with 4 ranks, .* may have 66 there\."
    ):
        check_files([2, 2], 66)
