"""The log over a real store: one order for all, no entry twice, no hole where a writer died, and batches while many tell something."""

from __future__ import annotations

import datetime as dt
import json
import multiprocessing
import os
import signal
import socket
import threading
import zlib
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from lockstep.nodes.link import LINGER_S
from lockstep.nodes.log import BATCH, MOST_BYTES, TOLD, RunLog, packed, unpacked
from lockstep.nodes.order import MOST_BATCH_BYTES, LogOrder, pause_s

LIMIT = dt.timedelta(seconds=30)


class Served:
    """A run's store, and who makes the order; `stop` before it goes."""

    def __init__(self) -> None:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.store = dist.TCPStore(
            "127.0.0.1", self.port, 1, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        self.order = LogOrder(self.store, lambda: 0)
        self.batches: list[int] = []
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while True:
            told = self.order.next(LIMIT)
            self.batches.append(len(told))
            if any(entry.get("who") == "stop" for entry in told):
                return

    def stop(self) -> None:
        if self._thread.is_alive():
            RunLog(client(self.port)).add({"who": "stop", "number": 0})
            self._thread.join()


@pytest.fixture
def served() -> Iterator[Served]:
    one = Served()
    yield one
    one.stop()


@pytest.fixture
def port(served: Served) -> int:
    served.start()
    return served.port


def client(port: int) -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", port, None, False, timeout=LIMIT)


def read(port: int, count: int) -> list[tuple[str, int]]:
    log = RunLog(client(port))
    return [(entry["who"], entry["number"]) for entry in (log.next(LIMIT) for _ in range(count))]


def test_what_one_node_adds_the_others_read_in_its_order(port: int) -> None:
    log = RunLog(client(port))
    for number in range(3):
        log.add({"who": "a", "number": number})
    assert read(port, 3) == [("a", 0), ("a", 1), ("a", 2)]


def test_writers_at_the_same_time_never_take_one_entry_and_leave_no_hole(port: int) -> None:
    logs = {who: RunLog(client(port)) for who in "abcd"}
    together = threading.Barrier(len(logs))

    def write(who: str) -> None:
        together.wait()
        for number in range(25):
            logs[who].add({"who": who, "number": number})

    writers = [threading.Thread(target=write, args=(who,)) for who in logs]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    found = read(port, 100)
    assert found == read(port, 100), "the same for everybody"
    assert all([number for name, number in found if name == who] == list(range(25)) for who in logs)


def test_two_writers_that_say_the_same_both_say_it(port: int) -> None:
    for _ in range(2):
        RunLog(client(port)).add({"who": "both", "number": 1})
    assert read(port, 2) == [("both", 1), ("both", 1)]


def _write_for_ever(port: int, ready: int) -> None:
    log = RunLog(client(port))
    for number in range(10**9):
        log.add({"who": "dies", "number": number})
        if number == 3:
            os.write(ready, b"x")


def test_a_writer_that_is_killed_leaves_no_hole(port: int) -> None:
    ours, theirs = os.pipe()
    writer = multiprocessing.get_context("fork").Process(target=_write_for_ever, args=(port, theirs))
    writer.start()
    assert os.read(ours, 1) == b"x"
    assert writer.pid is not None
    os.kill(writer.pid, signal.SIGKILL)
    writer.join()
    os.close(ours)
    os.close(theirs)
    RunLog(client(port)).add({"who": "lives", "number": 0})
    log, found = RunLog(client(port)), []
    while not found or found[-1][0] != "lives":
        entry = log.next(LIMIT)
        found.append((entry["who"], entry["number"]))
    assert found == [*(("dies", number) for number in range(len(found) - 1)), ("lives", 0)]
    assert len(found) > 4


def test_what_was_told_is_in_the_store_before_adding_returns(served: Served) -> None:
    """A node that ends right after it told something has been heard before its end is."""
    RunLog(client(served.port)).add({"who": "a", "number": 1})
    assert served.store.check([TOLD])


def test_what_many_told_meanwhile_is_one_batch(served: Served) -> None:
    for number in range(40):
        RunLog(client(served.port)).add({"who": "many", "number": number})
    assert [entry["number"] for entry in served.order.next(LIMIT)] == list(range(40))
    assert [entry["number"] for entry in (RunLog(client(served.port)).next(LIMIT),)] == [0]
    assert not served.store.check([BATCH.format(1)])


def test_a_batch_ends_where_the_store_would_not_take_it(served: Served) -> None:
    log, long = RunLog(client(served.port)), "x" * (MOST_BYTES - 100)
    count = MOST_BATCH_BYTES // len(long) + 3
    for number in range(count):
        log.add({"who": "a", "number": number, "text": long})
    taken = []
    while sum(taken) < count:
        taken.append(len(served.order.next(LIMIT)))
    assert len(taken) == 2
    assert read(served.port, count) == [("a", number) for number in range(count)]


def test_the_next_batch_waits_for_those_who_read_the_last_one(served: Served) -> None:
    slept: list[float] = []
    order = LogOrder(served.store, lambda: 400, now=lambda: 7.0, sleep=slept.append)
    for number in range(2):
        RunLog(client(served.port)).add({"who": "a", "number": number})
        order.next(LIMIT)
    assert slept == [0.0, pytest.approx(pause_s(400))]
    assert pause_s(0) == 0.0
    assert pause_s(1_000_000) < LINGER_S, "or the last batch would come after the first node has gone"


@pytest.mark.thorough
def test_what_would_not_fit_into_a_batch_is_refused_before_it_is_unpacked() -> None:
    fits = packed([json.dumps("x" * MOST_BYTES)] * 7)
    assert len(unpacked(fits)) == 7
    bomb = zlib.compress(b"[" + b" " * (1 << 30) + b"]", 1)
    for wrong, why in ((bomb, "more than"), (fits[:-9], "a part of one"), (b"[]", "no batch")):
        with pytest.raises(ValueError, match=why):
            unpacked(wrong)


def test_an_entry_that_is_too_long_is_not_written(port: int) -> None:
    log = RunLog(client(port))
    with pytest.raises(ValueError, match="an entry of"):
        log.add({"who": "a", "text": "x" * MOST_BYTES})
    log.add({"who": "a", "number": 1})
    assert read(port, 1) == [("a", 1)]


def test_waiting_for_an_entry_ends_with_the_patience(port: int) -> None:
    with pytest.raises(RuntimeError):
        RunLog(client(port)).next(dt.timedelta(milliseconds=50))


def test_a_reader_waits_for_the_next_entry(port: int) -> None:
    found: list[list[tuple[str, int]]] = []
    reader = threading.Thread(target=lambda: found.append(read(port, 1)))
    reader.start()
    RunLog(client(port)).add({"who": "a", "number": 7})
    reader.join()
    assert found == [[("a", 7)]]


def test_what_nodes_show_is_fetched_as_far_as_they_do(port: int) -> None:
    log = RunLog(client(port))
    log.show("a", {"gauges": [1]})
    assert log.shown(["a", "b"]) == [{"gauges": [1]}]
    log.show("b", {"gauges": [2]})
    log.show("a", {"gauges": [3]})
    assert log.shown(["a", "b"]) == [{"gauges": [3]}, {"gauges": [2]}]
    assert log.shown([]) == []
