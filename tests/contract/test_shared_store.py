"""The store in shared memory does what torch's own stores do; each test runs over both, alone and behind a prefix."""

from __future__ import annotations

import datetime as dt
import os
import signal
import threading

import pytest
import torch.distributed as dist

from samebits.protocol.environment import encode_place
from samebits.protocol.meeting_place import InheritedFile, MeetingPlace
from samebits.rank.transport.local import native

if not native.available():
    pytest.skip(native.why_not(), allow_module_level=True)

from samebits.rank.transport.local.shared_store import SharedStore, has_inherited, inherited_store

SOON = dt.timedelta(milliseconds=30)


def shared(num_bytes=1 << 20):
    return SharedStore(native.compiled.Table(native.compiled.Memory.create(num_bytes, reserve=False)))


@pytest.fixture(params=["torch's", "ours", "torch's, prefixed", "ours, prefixed"])
def store(request):
    inner = dist.HashStore() if request.param.startswith("torch") else shared()
    yield dist.PrefixStore("group 1", inner) if "prefixed" in request.param else inner
    del inner


def test_what_is_set_is_there(store):
    store.set("text", "värld")
    store.set("binary", b"\x00\xff".decode("latin-1"))
    assert store.get("text") == "värld".encode()
    assert store.num_keys() == 2
    assert store.check(["text", "binary"])
    assert not store.check(["text", "none"])
    assert store.delete_key("text")
    assert not store.delete_key("text")
    assert store.num_keys() == 1
    store.set("empty", "")
    assert store.get("empty") == b""


def test_numbers_are_added_and_stand_there_as_text(store):
    assert store.add("count", 3) == 3
    assert store.add("count", -5) == -2
    assert store.get("count") == b"-2"
    store.set("seven", "7")
    assert store.add("seven", 1) == 8
    store.set("word", "word")
    with pytest.raises(ValueError):
        store.add("word", 1)


def test_compare_set_writes_only_over_what_was_expected(store):
    assert store.compare_set("key", "other", "new") == b"other"
    assert not store.check(["key"])
    assert store.compare_set("key", "", "first") == b"first"
    assert store.compare_set("key", "other", "new") == b"first"
    assert store.compare_set("key", "first", "second") == b"second"
    assert store.get("key") == b"second"


def test_several_keys_and_values_that_grow(store):
    assert store.has_extended_api()
    store.multi_set(["a", "b"], ["1", "2"])
    assert store.multi_get(["b", "a"]) == [b"2", b"1"]
    store.append("a", "0")
    store.append("new", "x")
    assert store.multi_get(["a", "new"]) == [b"10", b"x"]


def test_waiting_ends_with_the_last_key(store):
    waits = threading.Thread(target=lambda: store.wait(["a", "b"], dt.timedelta(seconds=60)))
    waits.start()
    store.set("a", "1")
    assert waits.is_alive()
    store.set("b", "2")
    waits.join(60)
    assert not waits.is_alive()
    store.wait(["a"])


def test_waiting_in_vain_is_an_error_of_torch(store):
    with pytest.raises(dist.DistStoreError, match=r"[Ww]ait timeout"):
        store.wait(["a"], SOON)
    store.set_timeout(SOON)
    with pytest.raises(dist.DistStoreError, match=r"[Ww]ait timeout"):
        store.get("a")
    store.set("a", "1")
    assert store.get("a") == b"1"


@pytest.mark.skipif(not hasattr(dist.Store, "barrier"), reason="torch 2.11 has none")
def test_a_barrier_of_torch_works_over_it(store):
    threads = [threading.Thread(target=lambda: store.barrier("b", 3, dt.timedelta(seconds=60))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def test_the_error_names_the_missing_keys_and_a_full_store_says_so():
    store = shared()
    store.set("here", "1")
    with pytest.raises(dist.DistStoreError, match=r"wait timeout after 30ms, keys: missing$"):
        store.wait(["here", "missing"], SOON)
    with pytest.raises(RuntimeError, match="store is full"):
        store.set("large", "x" * (1 << 20))
    assert sorted(store.list_keys()) == ["here"]


def test_a_signal_interrupts_a_wait():
    class SignalError(Exception):
        pass

    def interrupt(*_):
        raise SignalError

    before = signal.signal(signal.SIGUSR2, interrupt)
    try:
        waits = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGUSR2))
        waits.start()
        with pytest.raises(SignalError):
            shared().wait(["never"], dt.timedelta(seconds=60))
    finally:
        waits.join()
        signal.signal(signal.SIGUSR2, before)


def test_values_of_a_process_that_has_ended_stay():
    store = shared()
    if not (process := os.fork()):
        store.set("from", "a child")
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(process, 0)
    assert store.get("from") == b"a child"


def test_a_process_without_the_descriptor_has_inherited_nothing(tmp_path):
    memory = native.compiled.Memory.create(1 << 20, reserve=False)
    table = InheritedFile.at(memory.descriptor)
    variables = encode_place(MeetingPlace(table, table, table))
    inherited = inherited_store(variables)
    inherited_store(variables).set("key", "value")
    assert inherited.get("key") == b"value"
    assert not has_inherited({})
    with (tmp_path / "other").open("w") as other:
        for number in (other.fileno(), 9999):
            elsewhere = InheritedFile(number, table.identity)
            assert inherited_store(encode_place(MeetingPlace(elsewhere, table, table))) is None
