"""The keys of a round as node 0 holds them: like torch's own store, and each value goes to a node once."""

import struct

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from samebits.launcher.nodes.meeting import HAS_IT, MOST_VALUE_BYTES, Keys, from_travel, to_travel
from samebits.protocol.message import packed


class Asking:
    """A store on `Keys`, as a launcher asks for its ranks."""

    def __init__(self):
        self.keys, self.answers = Keys(), []

    def ask(self, do, *keys, blob=b"", node="b", **more):
        got = []
        self.keys.ask(node, {"do": do, "keys": keys, **more}, blob, lambda entry, values: got.append((entry, values)))
        return got

    def set(self, key, value):
        self.ask("set", key, blob=to_travel(value))

    def get(self, key):
        ((_, values),) = self.ask("get", key)
        return from_travel(values)

    def compare_set(self, key, expected, desired):
        old, new = to_travel(expected), to_travel(desired)
        ((_, value),) = self.ask("compare_set", key, blob=old + new, sizes=[len(old)])
        return from_travel(value)

    def add(self, key, amount):
        return self.ask("add", key, amount=amount)[0][0]["found"]

    def check(self, keys):
        return self.ask("check", *keys)[0][0]["found"]

    def delete_key(self, key):
        return self.ask("delete", key)[0][0]["found"]


KEY = st.sampled_from("ab")
VALUE = st.sampled_from([b"", b"one", b"two", b"3"])
ACTS = st.one_of(
    st.tuples(st.just("set"), KEY, VALUE),
    st.tuples(st.just("add"), st.just("number"), st.integers(-3, 3)),
    st.tuples(st.just("compare_set"), KEY, VALUE, VALUE),
    st.tuples(st.just("check"), st.lists(KEY, min_size=1, max_size=2)),
    st.tuples(st.just("delete_key"), KEY),
    st.tuples(st.just("get"), KEY),
)


@given(st.lists(ACTS, max_size=15))
def test_they_answer_as_torchs_own_store(acts):
    torchs, ours = dist.HashStore(), Asking()
    for act, *arguments in acts:
        if act == "get" and not torchs.check([arguments[0]]):
            continue
        if act == "compare_set":
            there = torchs.check([arguments[0]])
            if not there and arguments[1]:  # HashStore says nothing then, TCPStore what was expected
                assert ours.compare_set(*arguments) == arguments[1]
                continue
            if there and not arguments[1] and torchs.get(arguments[0]):
                assert ours.compare_set(*arguments) == torchs.get(arguments[0])
                continue
        assert getattr(ours, act)(*arguments) == getattr(torchs, act)(*arguments), act


def test_whoever_waits_is_answered_once_when_the_last_key_is_there():
    asking = Asking()
    got, waited = asking.ask("get", "a", "b"), asking.ask("wait", "b")
    asking.set("a", b"1")
    assert (got, waited) == ([], [])
    asking.ask("delete", "a")
    asking.set("b", b"2")
    assert (got, waited) == ([], [({}, b"")]), "a was deleted meanwhile"
    asking.set("a", b"3")
    asking.set("a", b"4")
    assert got == [({"sizes": [2, 2]}, b"\0003\0002")]


def test_a_value_goes_to_each_node_once_until_it_changes():
    asking = Asking()
    asking.set("a", b"x" * 300)
    first, again, other = (asking.ask("get", "a", node=node) for node in ("b", "b", "c"))
    assert first == other and first[0][0] == {"sizes": [301]}
    assert again == [({"sizes": [HAS_IT]}, b"")]
    asking.set("a", b"y" * 300)
    assert asking.ask("get", "a")[0][0] == {"sizes": [301]}


@given(st.binary(max_size=2000))
def test_values_come_out_as_they_went_in(value):
    assert from_travel(to_travel(value)) == value
    assert len(to_travel(value)) <= len(value) + 1
    assert len(to_travel(bytes(5000))) < 100


def test_a_value_that_is_too_long_is_refused():
    with pytest.raises(ValueError, match="8388609 bytes"):
        to_travel(bytes(MOST_VALUE_BYTES + 1))


@pytest.mark.parametrize(("nodes", "limit"), [(16, 20e6), pytest.param(128, 1e9, marks=pytest.mark.thorough)])
def test_the_start_of_many_nodes_costs_node_0_little(nodes, limit):
    """8 plain ranks each: every rank reads an address of every other one, and a number for each pair (Gloo, torch 2.13)."""
    ranks, asking, sent = 8, Asking(), 0
    world = nodes * ranks
    keys = [f"round 0/samebits env, 1/0//cpu//rank{rank}" for rank in range(world)]

    def count(entry, values):
        nonlocal sent
        sent += len(packed(entry, values)) + 20

    for rank, key in enumerate(keys):
        asking.keys.ask(rank // ranks, {"do": "get", "keys": keys}, b"", count)
        numbers = struct.pack(f"{world}q", *range(rank * world, (rank + 1) * world))
        asking.set(key, b"%0165d" % rank + numbers)
    assert sent < limit, f"{sent / 1e6:.0f} MB"
