"""How many processes a user may still start, and a launcher that may start no thread."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path

import pytest

from lockstep.diagnosis.probe import Probe
from lockstep.machine.processes import address_limit, processes_left


def limit_processes(monkeypatch, most: int, user: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (most, most))
    monkeypatch.setattr(os, "geteuid", lambda: user)


def test_the_threads_of_this_users_processes_are_counted_and_no_others(monkeypatch, tmp_path: Path) -> None:
    user = os.getuid()
    for number, threads in ((7, 1), (8, 3)):
        for thread in range(threads):
            (tmp_path / str(number) / "task" / str(thread)).mkdir(parents=True)
    (tmp_path / "sys").mkdir()
    limit_processes(monkeypatch, 10, user or 1)
    assert processes_left(tmp_path) == (6 if user else 10)


def test_no_fewer_than_none_are_left(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "7" / "task" / "7").mkdir(parents=True)
    limit_processes(monkeypatch, 0, os.getuid() or 1)
    assert processes_left(tmp_path) == 0


@pytest.mark.parametrize(("most", "user"), [(resource.RLIM_INFINITY, 1000), (10, 0)])
def test_without_a_limit_and_as_root_any_number_is_left(most: int, user: int, monkeypatch) -> None:
    limit_processes(monkeypatch, most, user)
    assert processes_left() == -1


def test_the_limit_of_addresses_is_the_one_in_force(monkeypatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1 << 20, resource.RLIM_INFINITY))
    assert address_limit() == 1 << 20


def test_a_probe_for_which_there_is_no_thread_has_no_samples(monkeypatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    probe = Probe(os.getpid())
    assert probe.samples == ()
    assert probe.stack is None
    probe.stop()
