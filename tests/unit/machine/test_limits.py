"""Limits of a process, and a launcher that may start no thread."""

from __future__ import annotations

import os
import resource
import threading

from samebits.launcher.diagnosis.probe import Probe
from samebits.machine.processes import address_limit


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
