"""What one rank does when the others do not come as they should; tests/ranks has the meetings that succeed."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import os
import threading
from pathlib import Path

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from samebits.errors import EnvironmentFailure
from samebits.rank.transport.local import native
from samebits.rank.transport.local.process import RankProcess, _state
from samebits.rank.transport.local.rendezvous import Round, meet, num_before_missing
from samebits.rank.transport.local.shared_store import SharedStore, new_store

pytestmark = pytest.mark.skipif(not native.available(), reason="needs the compiled part")


def test_more_ranks_than_a_group_can_have_are_refused_before_any_waits_for_another():
    store = dist.HashStore()
    with pytest.raises(EnvironmentFailure, match="a group has 1 to 254 ranks"):
        meet(store, 0, 255, lambda: "here.py:1")
    assert not store.check(["place/0"])


def test_a_name_in_shared_memory_is_taken_away_when_the_other_rank_does_not_come(monkeypatch):
    name = native.compiled.random_name()
    monkeypatch.setattr(native.compiled, "random_name", lambda: name)
    store = dist.HashStore()
    store.set_timeout(dt.timedelta(seconds=0.2))
    elsewhere = dataclasses.replace(RankProcess.here(), process_names="pid:[1]")
    store.set("place/1", json.dumps([[0, 1], vars(elsewhere)]))
    with pytest.raises(EnvironmentFailure, match="Rank 1 never joined the group"):
        meet(store, 0, 2, lambda: "here.py:1")
    assert store.check(["named/0"])
    assert not list(Path("/dev/shm").glob(f"*{name.strip('/')}*"))


class CountingStore:
    """A store that counts what it is asked."""

    timeout = dt.timedelta(seconds=1)

    def __init__(self) -> None:
        self._keys: dict[str, bytes] = {}
        self.requests = 0

    def set(self, key: str, value: str) -> None:
        self._keys[key] = value.encode()

    def get(self, key: str) -> bytes:
        self.requests += 1
        return self._keys[key]

    def check(self, keys: list[str]) -> bool:
        self.requests += 1
        return all(key in self._keys for key in keys)

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.requests += 1
        return [self._keys[key] for key in keys]


@pytest.mark.parametrize("size", [2, 64])
def test_what_all_ranks_have_told_is_read_at_once_however_many_they_are(size):
    store, here = CountingStore(), RankProcess.here()
    for rank in range(size):
        store.set(f"place/{rank}", str(rank))
    heard = list(Round(store, "place", range(size), {}, here).from_all())
    assert heard == [str(rank).encode() for rank in range(size)]
    assert store.requests == 2


@pytest.mark.parametrize("kind", ["hash", "file", "prefix", "shared"])
def test_every_store_that_ranks_may_meet_at_reads_several_keys(kind, tmp_path):
    kept = new_store()  # torch keeps no Python object alive
    store = {
        "hash": dist.HashStore,
        "file": lambda: dist.FileStore(str(tmp_path / "store"), 1),
        "prefix": lambda: dist.PrefixStore("a", dist.PrefixStore("b", dist.HashStore())),
        "shared": lambda: dist.PrefixStore("a", kept),
    }[kind]()
    for rank in range(3):
        store.set(f"place/{rank}", str(rank))
    assert list(Round(store, "place", range(3), {}, RankProcess.here()).from_all()) == [b"0", b"1", b"2"]


def test_a_store_that_fails_is_told_as_a_rank_that_never_came():
    class Gone(CountingStore):
        def check(self, keys):
            raise dist.DistNetworkError("the connection is closed")

    store, here = Gone(), RankProcess.here()
    with pytest.raises(EnvironmentFailure, match=r"Rank 0 never joined the group: the connection is closed\."):
        list(Round(store, "place", range(2), {0: dataclasses.replace(here, process=1)}, here).from_all())


def test_a_rank_that_differs_is_heard_before_one_that_is_missing_is_waited_for():
    store, here = CountingStore(), RankProcess.here()
    store.set("place/0", "other ranks")
    heard = Round(store, "place", range(3), {}, here).from_all()
    assert next(heard) == b"other ranks"
    store.set("place/1", "1")
    store.set("place/2", "2")
    assert list(heard) == [b"1", b"2"]


@given(st.integers(1, 300), st.data())
def test_the_first_missing_key_is_found_in_few_requests(size, data):
    store, missing = CountingStore(), data.draw(st.sets(st.integers(0, size - 1), min_size=1))
    for rank in set(range(size)) - missing:
        store.set(f"place/{rank}", "there")
    assert num_before_missing(store, [f"place/{rank}" for rank in range(size)]) == min(missing)
    assert store.requests <= 2 * min(missing).bit_length() + 2


class CountedStore(SharedStore):
    """Ours, which wakes who waits for a key, and counts what the ranks ask together."""

    def __init__(self) -> None:
        super().__init__(native.compiled.Table(native.compiled.Memory.create(1 << 20, reserve=False)))
        self.requests = 0

    def check(self, keys):
        self.requests += 1
        return super().check(keys)

    def multi_get(self, keys):
        self.requests += 1
        return super().multi_get(keys)

    def wait(self, keys, timeout=None):
        self.requests += 1
        return super().wait(keys, timeout)


@pytest.mark.parametrize("prefix", [False, True])
def test_a_rank_sleeps_until_the_last_one_has_told_and_then_asks_for_all_at_once(prefix, monkeypatch):
    monkeypatch.setattr("samebits.rank.transport.local.rendezvous.SLEEP", dt.timedelta(seconds=60))
    size, kept = 5, CountedStore()
    store = dist.PrefixStore("a", kept) if prefix else kept
    rounds = [Round(store, "place", range(size), {}, RankProcess.here()) for _ in range(size)]
    heard = {}

    def meets(rank):
        rounds[rank].report(rank, str(rank))
        heard[rank] = list(rounds[rank].from_all())

    threads = [threading.Thread(target=meets, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard == {rank: [str(peer).encode() for peer in range(size)] for rank in range(size)}
    assert kept.requests <= 3 * size


def test_who_does_not_come_is_found_although_nobody_says_that_all_have():
    kept = new_store()
    kept.set_timeout(dt.timedelta(seconds=0.2))
    this_round = Round(dist.PrefixStore("a", kept), "place", range(3), {}, RankProcess.here())
    this_round.report(0, "differs")
    heard = this_round.from_all()
    assert next(heard) == b"differs"
    with pytest.raises(EnvironmentFailure, match="Rank 1 never joined the group"):
        next(heard)


def test_ranks_of_a_smaller_group_that_have_all_told_do_not_keep_others_awake():
    here, kept = RankProcess.here(), CountedStore()
    kept.set_timeout(dt.timedelta(seconds=0.2))
    kept.set("place/all", "")
    parent = dataclasses.replace(here, process=os.getppid(), started=_state(os.getppid())[1])
    with pytest.raises(EnvironmentFailure, match="Rank 0 never joined the group"):
        next(Round(kept, "place", range(3), {0: parent}, here).from_all())
    assert kept.requests < 50
