"""Ranges for a trace and a profiler: nothing while nobody looks, and a row for each thread that exchanges."""

import threading

import pytest
import torch

from samebits.protocol.journal import waiting_note
from samebits.protocol.journal.spans import NO_RANGE, Spans
from samebits.protocol.journal.waiting_note import range_of_wait


@pytest.fixture
def spans(monkeypatch):
    made = Spans()
    monkeypatch.setattr(waiting_note, "spans", made)
    return made


def test_nothing_is_made_while_nobody_looks(spans):
    spans.profiler = torch.autograd.profiler
    assert range_of_wait("a sum", [1], lambda: pytest.fail("asked")) is NO_RANGE
    with NO_RANGE as nothing:
        nothing.end()
    assert spans.taken() == []


def test_every_thread_has_a_row_of_its_own_with_what_it_waits_for(spans):
    spans.take()

    def wait():
        with range_of_wait("a sum", [3], lambda: "bucket 2"):
            pass

    wait()
    thread = threading.Thread(target=wait, name="sender")
    thread.start()
    thread.join()
    range_of_wait("a frame", range(5)).end()
    found = spans.taken()
    assert [(track, title) for track, title, _, _ in found] == [
        ("waits", "a sum (bucket 2), for rank 3"),
        ("sender", "a sum (bucket 2), for rank 3"),
        ("waits", "a frame, for 5 others"),
    ]
    assert all(begin <= end for _, _, begin, end in found)


def test_a_range_that_ends_after_the_trace_is_dropped(spans):
    spans.take()
    late = spans.range("waits", "late")
    assert spans.taken() == []
    late.end()
    assert spans.taken() == []
