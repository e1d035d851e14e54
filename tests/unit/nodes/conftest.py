"""What a test of nodes may not leave behind: it would be found by the next one in the same process."""

import threading

import pytest


def loops():
    return {thread for thread in threading.enumerate() if thread.name in ("lockstep-gate", "lockstep-tunnel")}


@pytest.fixture(autouse=True)
def _no_gate_or_tunnel_is_left():
    before = loops()
    yield
    assert not loops() - before, "close every gate and tunnel"
