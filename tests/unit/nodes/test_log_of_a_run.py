"""The log over a real store: one order for all, no entry twice, no hole where a writer died."""

from __future__ import annotations

import datetime as dt
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from lockstep.nodes.log import ENTRY, MOST_BYTES, RunLog

LIMIT = dt.timedelta(seconds=30)


@pytest.fixture
def port() -> Iterator[int]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    number = listener.getsockname()[1]
    store = dist.TCPStore(
        "127.0.0.1", number, 1, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    yield number
    del store


def client(port: int) -> dist.TCPStore:
    return dist.TCPStore("127.0.0.1", port, None, False, timeout=LIMIT)


def read(port: int, count: int) -> list[tuple[str, int]]:
    log = RunLog(client(port))
    return [(entry["who"], entry["number"]) for entry in (log.next(LIMIT) for _ in range(count))]


def test_what_one_node_adds_the_others_read_in_its_order(port: int) -> None:
    log = RunLog(client(port), "a")
    assert [log.add({"who": "a", "number": number}) for number in range(3)] == [0, 1, 2]
    assert read(port, 3) == [("a", 0), ("a", 1), ("a", 2)]


def test_writers_at_the_same_time_never_take_one_entry_and_leave_no_hole(port: int) -> None:
    logs = {who: RunLog(client(port), who) for who in "abcd"}
    together, numbers = threading.Barrier(len(logs)), {}

    def write(who: str) -> None:
        together.wait()
        numbers[who] = [logs[who].add({"who": who, "number": number}) for number in range(25)]

    writers = [threading.Thread(target=write, args=(who,)) for who in logs]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(number for taken in numbers.values() for number in taken) == list(range(100))
    found = read(port, 100)
    assert found == read(port, 100), "the same for everybody"
    assert all([number for name, number in found if name == who] == list(range(25)) for who in logs)


def test_two_writers_that_say_the_same_both_say_it(port: int) -> None:
    for who in "ab":
        RunLog(client(port), who).add({"who": "both", "number": 1})
    assert read(port, 2) == [("both", 1), ("both", 1)]


def _write_for_ever(port: int, ready: int) -> None:
    log = RunLog(client(port), "dies")
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
    last = RunLog(client(port), "lives").add({"who": "lives", "number": 0})
    found = read(port, last + 1)
    assert found == [*(("dies", number) for number in range(last)), ("lives", 0)]


def test_an_entry_that_is_too_long_is_not_written(port: int) -> None:
    log = RunLog(client(port), "a")
    with pytest.raises(ValueError, match="an entry of"):
        log.add({"who": "a", "text": "x" * MOST_BYTES})
    assert log.add({"who": "a", "number": 1}) == 0


def test_waiting_for_an_entry_ends_with_the_patience(port: int) -> None:
    with pytest.raises(RuntimeError):
        RunLog(client(port)).next(dt.timedelta(milliseconds=50))


def test_a_reader_waits_for_the_next_entry(port: int) -> None:
    found: list[list[tuple[str, int]]] = []
    reader = threading.Thread(target=lambda: found.append(read(port, 1)))
    reader.start()
    RunLog(client(port), "a").add({"who": "a", "number": 7})
    reader.join()
    assert found == [[("a", 7)]]


def test_entries_lie_under_their_numbers(port: int) -> None:
    RunLog(client(port), "a").add({"who": "a"})
    assert client(port).get(ENTRY.format(0)) == b'{"who": "a", "by": ["a", 1]}'
