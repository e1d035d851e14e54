"""What a node makes of the entries of the log: every kind, those that come too late, and those of nodes that are gone."""

from __future__ import annotations

from typing import Any

import pytest

from samebits.launcher.nodes.roster import NodeRecord, Refused
from samebits.launcher.nodes.view import RunView
from samebits.protocol.records import plain


def record(node: str, *, most: int = 3) -> NodeRecord:
    return NodeRecord(node, f"host-{node}", None, node == "a", 1, most, 2, 1)


def asks(node: str, *, most: int = 3) -> dict[str, Any]:
    return {"kind": "asks", "record": plain(record(node, most=most))}


def roster(number: int, *nodes: str) -> dict[str, Any]:
    members = [[place, node] for place, node in enumerate(nodes)]
    return {"kind": "roster", "round": number, "lanes": 8, "threads": 1, "members": members}


def ended(node: str, number: int, code: int = 0) -> dict[str, Any]:
    return {"kind": "ended", "round": number, "node": node, "report": {"exit_code": code}}


def fall(node: str, number: int, *, regroups: bool = False) -> dict[str, Any]:
    return {"kind": "fall", "round": number, "node": node, "regroups": regroups, "keeps": not regroups}


def of(node: str, kind: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "node": node, **more}


def view(*entries: dict[str, Any]) -> RunView:
    message = RunView()
    for entry in entries:
        message.take(entry)
    return message


TWO = (asks("a"), asks("b"), roster(0, "a", "b"))


def test_nodes_ask_in_the_order_in_which_they_came_until_a_roster_takes_them() -> None:
    message = view(asks("b"), asks("a"))
    assert list(message.asking) == ["b", "a"]
    assert (message.round, message.members) == (-1, [])
    message.take(roster(0, "a", "b"))
    assert message.asking == {}
    assert (message.round, message.threads, message.lanes, message.numbers()) == (0, 1, 8, {"a": 0, "b": 1})


def test_a_roster_that_is_not_the_next_one_is_nobodys_business() -> None:
    message = view(*TWO, roster(0, "a"), roster(2, "b"))
    assert (message.round, message.numbers()) == (0, {"a": 0, "b": 1})


def test_an_entry_of_no_known_kind_changes_nothing() -> None:
    assert view(*TWO, {"kind": "of a later version", "round": 0, "node": "a"}) == view(*TWO)
    assert view(*TWO, {}) == view(*TWO)


def test_what_is_told_about_another_round_comes_too_late() -> None:
    message = view(*TWO, asks("a"), asks("b"), roster(1, "a", "b"), ended("b", 0, 1), fall("b", 0), fall("b", 2))
    assert (message.ended, message.fallen, message.must_end("a")) == ({}, [], False)


def test_a_new_round_knows_nothing_of_how_the_one_before_ended() -> None:
    decision = {"kind": "decision", "round": 0, "node": "a", "decided": {"stop": {}}}
    message = view(*TWO, fall("b", 0, regroups=True), ended("b", 0, 1), ended("a", 0, 1), decision)
    assert message.is_over()
    assert message.decision == {"stop": {}}
    for entry in (asks("a"), asks("b"), roster(1, "a", "b")):
        message.take(entry)
    assert (message.ended, message.fallen, message.decision, message.regroups, message.is_over()) == (
        {},
        [],
        None,
        False,
        False,
    )


def test_the_others_end_when_a_nodes_ranks_fall_or_have_ended_badly() -> None:
    message = view(*TWO, fall("b", 0))
    assert (message.must_end("a"), message.must_end("b")) == (True, False)
    message = view(*TWO, ended("b", 0, 1))
    assert (message.must_end("a"), message.must_end("b")) == (True, False)
    message = view(*TWO, ended("b", 0, 0))
    assert not message.must_end("a"), "it has trained to its end"


def test_a_round_regroups_only_if_that_came_before_any_failure() -> None:
    assert view(*TWO, fall("a", 0, regroups=True), fall("b", 0)).regroups
    assert not view(*TWO, fall("b", 0), fall("a", 0, regroups=True)).regroups


def test_a_node_that_is_gone_before_it_told_how_its_ranks_ended_is_lost() -> None:
    message = view(*TWO, of("b", "gone"))
    assert [one.text for one in message.lost_members()] == ["node 1 (host host-b)"]
    assert message.must_end("a")
    assert not message.is_over()
    message.take(ended("a", 0, 1))
    assert message.is_over(), "nobody waits for the lost one"
    assert message.changes() == "node 1 (host host-b) is gone"


def test_a_node_that_is_gone_after_it_told_that_is_not_lost() -> None:
    message = view(*TWO, ended("b", 0, 0), of("b", "gone"))
    assert message.lost_members() == []
    assert not message.must_end("a")
    assert message.changes() == ""


def test_a_node_that_is_gone_does_not_ask_any_more_and_may_ask_again() -> None:
    message = view(*TWO, asks("c"), of("c", "gone"))
    assert message.newcomers() == []
    message.take(asks("c"))
    assert [one.node for one in message.newcomers()] == ["c"]


def test_newcomers_are_taken_in_as_far_as_there_is_room() -> None:
    message = view(*TWO, asks("c"), asks("d"))
    assert [one.node for one in message.newcomers()] == ["c"]
    assert message.changes() == "host host-c joins"
    message.take(of("b", "leaves"))
    assert [one.node for one in message.newcomers()] == ["c", "d"]
    full = view(asks("a", most=2), asks("b", most=2), roster(0, "a", "b"), asks("c", most=2))
    assert (full.newcomers(), full.changes()) == ([], ""), "a spare waits"
    full.take(of("b", "gone"))
    assert full.changes() == "node 1 (host host-b) is gone, host host-c joins"


def test_who_asks_for_the_next_round_is_no_newcomer_if_it_is_in_this_one() -> None:
    assert view(*TWO, asks("b")).changes() == ""


def test_a_leaving_node_ends_nobody_and_is_named() -> None:
    message = view(*TWO, of("b", "leaves"))
    assert message.changes() == "node 1 (host host-b) leaves"
    message.take(ended("b", 0, 143))
    assert not message.must_end("a"), "the others go on until they have what they need"
    message.take(of("b", "gone"))
    assert message.changes() == "", "it is on nobody's way any more"


def test_signals_are_kept_with_the_node_to_which_they_were_sent() -> None:
    assert view(*TWO, of("b", "signal", number=15), of("a", "signal", number=2)).signals == [("b", 15), ("a", 2)]


@pytest.mark.parametrize("nodes", [("b",), ("a", "b")])
def test_who_was_refused_does_not_ask_any_more(nodes: tuple[str, ...]) -> None:
    entry = {"kind": "refused", "nodes": list(nodes), "problem": "No.", "fix": "Yes."}
    message = view(asks("a"), asks("b"), entry)
    assert message.refused == dict.fromkeys(nodes, Refused(nodes, "No.", "Yes."))
    assert set(message.asking) == {"a", "b"} - set(nodes)


def test_all_nodes_see_the_same_whatever_they_are_told_between() -> None:
    entries = [*TWO, fall("b", 0), ended("b", 0, 1), ended("a", 0, 1), of("b", "gone"), asks("c"), asks("a")]
    assert view(*entries, roster(1, "a", "c")) == view(*entries, roster(1, "a", "c"))
    assert view(*entries, roster(1, "a", "c")).numbers() == {"a": 0, "c": 1}
