"""Ranks of several nodes meet through sockets to their launchers: torch's stores, groups and threads, and what goes wrong."""

import datetime as dt
import os
import threading
import time
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist

from samebits.launcher.nodes.meeting import NodeMeeting, hold_keys
from samebits.protocol.meeting_place import InheritedFile
from samebits.rank.transport.local.nodes_store import ONE_READ, NodesStore, gloo_reads_at_once
from tests.support.stars import LIMIT_S, Sky


@contextmanager
def met(*names, rounds=None):
    """A store for a rank of each node, while a thread serves all launchers."""
    sky, over = Sky(), threading.Event()
    hold_keys(sky.host)
    sky.joined(*(name for name in names if name != "a"))
    meetings = {name: NodeMeeting(sky.stars[name], (rounds or {}).get(name, 0)) for name in names}

    def serve():
        while not over.is_set():
            sky.turn(0.02)

    def stop():
        over.set()
        thread.join()

    sky.stop, thread = stop, threading.Thread(target=serve)
    thread.start()
    stores = {name: NodesStore(InheritedFile.at(one.bell.fileno())) for name, one in meetings.items()}
    for store in stores.values():
        store.set_timeout(dt.timedelta(seconds=LIMIT_S))
    try:
        yield sky, stores, meetings
    finally:
        stop()
        for meeting in meetings.values():
            meeting.close()
        sky.close()


def at_once(*tasks):
    threads = [threading.Thread(target=task) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def test_what_a_rank_of_one_node_sets_ranks_of_all_nodes_read():
    with met("a", "b", "c") as (_, stores, _meetings):
        got = {}

        def read(name):
            got[name] = stores[name].multi_get(["from a", "from b", "from c"])

        def tell():
            for name, store in stores.items():
                store.set(f"from {name}", name * 3000)

        at_once(*(lambda name=name: read(name) for name in stores), tell)
        assert set(map(tuple, got.values())) == {(b"a" * 3000, b"b" * 3000, b"c" * 3000)}
        assert stores["a"].add("number", 2) + stores["b"].add("number", 3) == 7
        assert stores["c"].compare_set("word", "", "one") == b"one" == stores["a"].compare_set("word", "two", "three")
        assert stores["b"].check(["word"]) and not stores["b"].check(["word", "none"])
        stores["a"].append("word", " more")
        assert stores["b"].get("word") == b"one more"
        assert stores["b"].delete_key("word") and not stores["a"].delete_key("word")
        assert stores["a"].num_keys() == 4


def test_groups_of_torch_are_made_over_it():
    with met("a", "b") as (_, stores, _meetings):
        sums = []

        def join(rank, store):
            group = dist.ProcessGroupGloo(dist.PrefixStore("all", store), rank, 2, dt.timedelta(seconds=LIMIT_S))
            numbers = torch.ones(3) * (rank + 1)
            group.allreduce([numbers]).wait()
            sums.append(numbers.tolist())

        at_once(*(lambda rank=rank, store=store: join(rank, store) for rank, store in enumerate(stores.values())))
        assert sums == [[3.0] * 3] * 2


@pytest.mark.parametrize("size", [2, 8])
def test_a_rank_asks_as_often_in_a_large_group_as_in_a_small_one(monkeypatch, size):
    asked, ask = [], NodeMeeting._ask
    monkeypatch.setattr(NodeMeeting, "_ask", lambda self, *message: (asked.append(message), ask(self, *message)))
    monkeypatch.delenv(ONE_READ, raising=False)
    limit = dt.timedelta(seconds=LIMIT_S)
    with met("a", "b") as (_, stores, _meetings):
        groups = []

        def join(what, rank):
            store = dist.PrefixStore(what, stores["ab"[rank % 2]])
            groups.append(dist.ProcessGroupGloo(store, rank, size, limit))

        with gloo_reads_at_once(stores["a"], limit), gloo_reads_at_once(stores["b"], limit):
            at_once(*(lambda rank=rank: join("ours", rank) for rank in range(size)))
        ours = len(asked) / size
        at_once(*(lambda rank=rank: join("a script's", rank) for rank in range(size)))
        assert 2 <= ours <= 4 and len(groups) == 2 * size
        assert size == 2 or len(asked) / size - ours > 8, "a script's own group takes the way that keeps to its timeout"
        began = time.monotonic()
        with pytest.raises(RuntimeError):
            dist.ProcessGroupGloo(dist.PrefixStore("alone", stores["a"]), 0, 2, dt.timedelta(seconds=0.5))
        assert time.monotonic() - began < LIMIT_S / 2, "and not to the store's"


def test_a_key_that_never_comes_is_named_and_the_store_goes_on():
    with met("b") as (_, stores, _meetings):
        with pytest.raises(dist.DistStoreError, match="wait timeout after 50ms, keys: never"):
            stores["b"].wait(["never"], dt.timedelta(seconds=0.05))
        stores["b"].set("never", "after all")
        assert stores["b"].get("never") == b"after all"
        with pytest.raises(dist.DistStoreError, match="a value of 9000000 bytes"):
            stores["b"].set("long", bytes(9_000_000))


def test_a_forked_child_of_a_rank_asks_for_itself():
    with met("a") as (_, stores, _meetings):
        stores["a"].set("by", "the rank")
        child = os.fork()
        if not child:
            stores["a"].set("by", "its child")
            os._exit(0)
        os.waitpid(child, 0)
        assert stores["a"].get("by") == b"its child"


def test_a_rank_whose_launcher_is_gone_is_told():
    with met("a", "b") as (sky, stores, meetings):
        stores["b"].set("one", "1")
        sky.stop()
        meetings["b"].close()
        with pytest.raises(dist.DistNetworkError, match="the launcher, through which the ranks meet, is gone"):
            stores["b"].get("one")


def test_a_round_does_not_find_the_keys_of_the_one_before():
    with met("a", "b", rounds={"b": 1}) as (_, stores, _meetings):
        stores["a"].set("address", "of a dead rank")
        assert stores["a"].check(["address"]) and not stores["b"].check(["address"])
        stores["b"].set("address", "of a living one")
        assert stores["b"].get("address") == b"of a living one"


def test_a_value_that_came_too_late_for_one_rank_is_there_for_the_next_one_of_its_node():
    with met("a", "b") as (_, stores, _meetings):
        with pytest.raises(dist.DistStoreError, match="wait timeout"):
            stores["b"].set_timeout(dt.timedelta(seconds=0.05))
            stores["b"].get("late")
        stores["b"].set_timeout(dt.timedelta(seconds=LIMIT_S))
        stores["a"].set("late", os.urandom(1000))
        assert stores["b"].get("late") == stores["a"].get("late")


def test_what_cannot_be_answered_raises_for_who_asked_and_the_launchers_live(monkeypatch):
    monkeypatch.setattr("samebits.launcher.nodes.meeting.MOST_ANSWER_BYTES", 150_000)
    with met("a", "b") as (_, stores, _meetings):
        stores["b"].set("word", "no number")
        for store in stores.values():
            with pytest.raises(dist.DistStoreError, match="invalid literal"):
                store.add("word", 1)
        for number in range(3):
            stores["a"].set(f"long {number}", os.urandom(80_000))
        with pytest.raises(dist.DistStoreError, match="bytes at once"):
            stores["b"].multi_get([f"long {number}" for number in range(3)])
        assert [len(stores["b"].get(f"long {number}")) for number in range(3)] == [80_000] * 3
