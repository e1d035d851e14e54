"""What a test of nodes may not leave behind: it would be found by the next one in the same process."""

import threading

import pytest


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert not {one for one in set(threading.enumerate()) - before if not one.daemon}, "end every thread"
