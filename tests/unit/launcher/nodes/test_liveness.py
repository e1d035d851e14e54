"""Which nodes do not reach each other, by what the kernel knows of their ranks' connections; and who is given up."""

import math
import socket
from types import SimpleNamespace

from samebits.launcher.nodes.liveness import CUT_S, DOUBT_S, LOSSY_DOUBT_S, Liveness, Path, Paths, to_give_up
from samebits.launcher.nodes.roster import Member, NodeRecord
from samebits.launcher.nodes.view import RunView
from samebits.machine.socket_bytes import Connection
from samebits.protocol.records import plain

B, C = (socket.inet_aton(address) for address in ("10.0.0.2", "10.0.0.3"))


def connection(peer, *, is_unanswered=False, quiet_s=0.0):
    return Connection(1, peer, 0, is_unanswered, quiet_s)


def test_a_path_is_told_once_when_nothing_is_acknowledged_for_long_and_once_when_it_is_back():
    paths = Paths({"b": "10.0.0.2", "c": "10.0.0.3"})
    cut = [connection(B, is_unanswered=True), connection(B), connection(C)]
    assert paths.look(cut, 1.0) == {}
    assert paths.look(cut, 1.0 + DOUBT_S) == {"b": Path.DOUBTFUL}
    assert paths.look(cut, 1.0 + CUT_S) == {"b": Path.CUT}
    assert paths.look(cut, 20.0) == {}
    assert paths.look([connection(B)], 21.0) == {"b": Path.WORKS}
    assert paths.look(cut, 22.0) == {}, "it counts anew"


def test_a_loss_now_and_then_is_no_cut():
    paths = Paths({"b": "10.0.0.2"})
    for now in range(20):
        assert paths.look([connection(B, is_unanswered=bool(now % 3))], float(now)) == {}


def test_a_node_is_quiet_when_none_of_its_ranks_sent_anything():
    paths = Paths({"b": "10.0.0.2", "c": "10.0.0.3"})
    found = [connection(B, quiet_s=40.0), connection(B, quiet_s=31.0), connection(C, quiet_s=1.0)]
    assert paths.quiet(found, 30.0) == {"b"}
    assert paths.quiet([], 30.0) == set(), "who has no connections is not judged"


def members(names="abcd"):
    return [
        Member(number, NodeRecord(name, f"host-{name}", None, name == "a", 4, 4, 1, 1))
        for number, name in enumerate(names)
    ]


def test_one_side_is_given_up_and_never_node_0():
    pairs = {frozenset("bc")}
    assert to_give_up(pairs, members()) == "c"
    assert to_give_up(pairs | {frozenset("bd")}, members()) == "b", "two others do not reach it"
    assert to_give_up({frozenset("ad")}, members()) == "d"
    assert to_give_up(set(), members()) == ""


def test_a_pair_counts_while_one_of_the_two_tells_it_in_this_round():
    view = RunView()
    for name in "abc":
        view.take({"kind": "asks", "record": plain(members()["abc".index(name)].record)})
    roster = {"kind": "roster", "threads": 1, "lanes": None, "members": [[0, "a"], [1, "b"], [2, "c"]]}
    view.take({**roster, "round": 0})
    view.take({"kind": "path", "round": 0, "node": "b", "to": "c", "path": "cut"})
    view.take({"kind": "path", "round": 0, "node": "c", "to": "b", "path": "cut"})
    view.take({"kind": "path", "round": 0, "node": "b", "to": "c", "path": "works"})
    assert view.cut_pairs() == {frozenset("bc")}
    view.take({"kind": "gone", "node": "c"})
    assert view.cut_pairs() == set()


def sent(now, again, peer=B, **how):
    return Connection(1, peer, 0, how.get("is_unanswered", False), 0.0, sent=10 * now, sent_again=again)


def test_a_path_is_lossy_where_much_is_sent_again_often_and_works_when_that_is_over():
    paths = Paths({"b": "10.0.0.2"})
    told = [paths.look([sent(now, 3 * now)], float(now)) for now in range(5)]
    assert told == [{}, {}, {}, {"b": Path.LOSSY}, {}]
    assert paths.lost["b"] == 0.3
    told = [paths.look([sent(now, 15)], float(now)) for now in range(5, 17)]
    assert {"b": Path.WORKS} in told
    once = Paths({"b": "10.0.0.2"})
    assert not any(once.look([sent(now, 8 if now > 1 else 0)], float(now)) for now in range(12)), "one interruption"
    few = Paths({"b": "10.0.0.2"})
    assert not any(few.look([sent(now, now // 2)], float(now)) for now in range(12)), "5 %"


def test_a_path_without_connections_is_not_called_good_again():
    paths = Paths({"b": "10.0.0.2"})
    cut = [connection(B, is_unanswered=True)]
    paths.look(cut, 0.0)
    assert paths.look(cut, CUT_S) == {"b": Path.CUT}
    assert paths.look([], 5.0) == {}, "the ranks have ended"
    assert paths.look(cut, 6.0) == {}, "others try"
    assert paths.look([connection(B)], 7.0) == {"b": Path.WORKS}


def test_a_lossy_path_puts_off_a_stall_and_a_cut_one_forbids_it():
    view = RunView()
    answered = SimpleNamespace(is_unanswered=lambda now, for_s: False)
    liveness = Liveness("a", view, answered, print, "10.0.0.1")
    assert liveness.doubt_s == 0.0
    view.paths = {("a", "b"): "lossy"}
    assert liveness.doubt_s == LOSSY_DOUBT_S
    view.paths = {("a", "b"): "lossy", ("a", "c"): "cut"}
    assert liveness.doubt_s == math.inf
