"""Which nodes make a round, with which numbers, and who is refused: pure decisions over what nodes say about themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samebits.launcher.nodes.roster import LAST_CALL_S, Member, NodeRecord, disagreement, is_complete, missing, numbered
from samebits.protocol.records import plain, restored


def record(node: str, number: int | None = None, *, least: int = 1, most: int = 4, **more: object) -> NodeRecord:
    message = {"same": {"the script": "a", "--lanes": "8"}, **more}
    return NodeRecord(node, f"host-{node}", number, node == "first", least, most, 2, 1, **message)  # type: ignore[arg-type]


FIRST = record("first", 0)


def test_a_record_survives_json() -> None:
    one = record("b", None, alike={"cpu": "avx2"})
    assert restored(NodeRecord, plain(one)) == one


def test_nodes_that_say_the_same_agree() -> None:
    assert disagreement([]) is None
    assert disagreement([FIRST]) is None
    assert disagreement([FIRST, record("b", 1), record("c"), record("d")]) is None


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (record("b", 1, most=3), "host-first has --nnodes 1:4, host-b --nnodes 1:3"),
        (record("b", 1, least=4), "host-b --nnodes 4"),
        (record("b", 1, same={"the script": "b", "--lanes": "8"}), "the script: a on host-first, b on host-b"),
        (record("b", 1, same={"the script": "a"}), "--lanes: 8 on host-first, nothing on host-b"),
        (record("b", 4), "Node 4 (host host-b) does not fit"),
        (record("b", 0), "started as node 0"),
    ],
)
def test_the_one_who_contradicts_the_first_node_is_refused_in_a_sentence(other: NodeRecord, words: str) -> None:
    refused = disagreement([FIRST, record("c", 2), other])
    assert refused is not None and refused.nodes == ("b",) and words in refused.problem


def test_numbers_are_those_given_and_the_lowest_free_ones_for_the_others() -> None:
    members = numbered([FIRST, record("c"), record("b", 1), record("d")], {})
    assert [(one.number, one.record.node) for one in members] == [(0, "first"), (1, "b"), (2, "c"), (3, "d")]
    assert members[1].text == "node 1 (host host-b)"


def test_a_node_keeps_its_number_when_others_leave_and_a_new_one_gets_a_free_one() -> None:
    before = {"first": 0, "b": 1, "c": 2}
    without = numbered([FIRST, record("c")], before)
    assert {one.record.node: one.number for one in without} == {"first": 0, "c": 2}
    again = numbered([FIRST, record("d"), record("c")], {one.record.node: one.number for one in without})
    assert {one.record.node: one.number for one in again} == {"first": 0, "c": 2, "d": 1}


def test_a_node_that_is_started_again_gets_its_number_back() -> None:
    """It is another node to the others, with another word, and was told the same number."""
    again = numbered([FIRST, record("c", 2), record("new-b", 1)], {"first": 0, "c": 2})
    assert {one.record.node: one.number for one in again} == {"first": 0, "new-b": 1, "c": 2}


rounds = st.lists(st.sets(st.sampled_from("bcdefg"), max_size=5), min_size=1, max_size=6)
given_numbers = st.dictionaries(st.sampled_from("bcdefg"), st.one_of(st.none(), st.integers(0, 5)))


@given(rounds, given_numbers)
def test_numbers_are_unlike_each_other_and_stable_over_rounds(
    members_of_rounds: list[set[str]], message: dict[str, int | None]
) -> None:
    before: dict[str, int] = {}
    for names in members_of_rounds:
        asking = [FIRST, *(record(name, message.get(name), most=6) for name in sorted(names))]
        members = numbered(asking, before)
        after = {one.record.node: one.number for one in members}
        assert after["first"] == 0
        assert len(set(after.values())) == len(after) == len(asking)
        assert [one.number for one in members] == sorted(after.values())
        assert all(after[node] == number for node, number in before.items() if node in after)
        before = after


def test_a_round_begins_at_once_when_all_are_there() -> None:
    asking = [FIRST, *(record(name) for name in "bcd")]
    assert is_complete(asking, [], 100.0, 100.0)
    assert is_complete([FIRST], ["b"], 5.0, 5.0) is False
    assert is_complete([replace(FIRST, most=1)], [], 5.0, 5.0)


def test_with_enough_nodes_a_round_begins_after_the_last_call() -> None:
    asking = [replace(FIRST, least=2), record("b", least=2)]
    assert not is_complete(asking[:1], [], 0.0, 1000.0), "one is too few, however long it waits"
    assert not is_complete(asking, [], 100.0, 100.0 + LAST_CALL_S / 2)
    assert is_complete(asking, [], 100.0, 100.0 + LAST_CALL_S)
    assert LAST_CALL_S <= 1.0


def test_a_node_of_the_round_before_that_is_there_is_waited_for() -> None:
    assert not is_complete([FIRST, record("b")], ["c"], 0.0, 1000.0)
    assert is_complete([FIRST, record("b")], [], 0.0, 1000.0)


@pytest.mark.parametrize(
    ("asking", "before", "text"),
    [
        ([record("first", 0, least=3, most=3)], [], "waiting for 2 of 3 nodes: node 1, node 2 never connected"),
        (
            [record("first", 0, least=3, most=3), record("b", 2, least=3, most=3)],
            [],
            "waiting for 1 of 3 nodes: node 1 never connected",
        ),
        (
            [record("first", 0, least=3, most=3), record("b", least=3, most=3)],
            [],
            "waiting for 1 of 3 nodes: only host-first, host-b have connected",
        ),
        (
            [record("first", 0, least=2, most=2)],
            [Member(0, record("first", 0)), Member(1, record("b"))],
            "waiting for 1 of 2 nodes: node 1 (host host-b) is not back",
        ),
        (
            [record("first", 0, least=3, most=3)],
            [Member(0, record("first", 0)), Member(1, record("b")), Member(2, record("c"))],
            "waiting for 2 of 3 nodes: node 1 (host host-b), node 2 (host host-c) are not back",
        ),
        ([record("first", 0, least=1, most=2)], [], "waiting for 1 of 2 nodes: node 1 never connected"),
    ],
)
def test_it_is_said_who_is_missing(asking: list[NodeRecord], before: list[Member], text: str) -> None:
    assert missing(asking, before) == text
