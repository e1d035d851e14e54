"""Strangers at node 0's port are closed one by one, told nothing, and disturb nobody inside."""

import socket
import subprocess
import sys
import time

import pytest

from samebits.launcher.nodes import answering
from samebits.launcher.nodes.answering import MOST_IN_A_TICK, MOST_OPENING
from samebits.launcher.nodes.key import Key
from samebits.launcher.nodes.session import GREETING_BYTES, HELLO_BYTES, CallerHello, address_bytes
from tests.scripts.flooding_strangers import STRANGERS
from tests.support.promises import promise
from tests.support.stars import LIMIT_S, Sky

FLOOD = """
import socket, sys, time
until, ends = time.monotonic() + 4, []
while time.monotonic() < until:
    end = socket.socket()
    end.setblocking(False)
    for act in (lambda: end.connect(("127.0.0.1", int(sys.argv[1]))), lambda: end.send(b"x" * 98)):
        try:
            act()
        except OSError:
            pass
    ends = [*ends[-200:], end]
    time.sleep(0.0003)
"""


@pytest.fixture
def sky():
    made = Sky()
    made.joined("b")
    yield made
    made.close()


@promise(
    "shut",
    "Strangers at node 0's port (random bytes, HTTP, another key, half handshakes, slow and silent ones) "
    "are closed and told nothing, and keep no node out",
    also=[
        "test_more_who_say_nothing_than_may_be_opening_keep_no_node_out",
        "test_a_thousand_strangers_are_refused_and_change_no_bit",
    ],
)
@pytest.mark.parametrize("each", [5, pytest.param(100, marks=pytest.mark.thorough)])
def test_strangers_are_closed_and_nobody_is_disturbed(sky, monkeypatch, each):
    monkeypatch.setattr(answering, "OPENING_S", 0.3)
    strangers = subprocess.Popen(
        [sys.executable, "-c", STRANGERS, str(sky.place.port), str(each)], stdout=subprocess.PIPE, text=True
    )
    asked = 0
    while strangers.poll() is None:
        sky.stars["b"].publish({"kind": "said", "number": asked})
        sky.until(lambda asked=asked: len(sky.entries("b")) == asked + 1)
        asked += 1
    assert strangers.communicate()[0] == f"{each * 10}\n", "each was closed, and was told nothing"
    sky.until(lambda: sky.host._callers.num_refused == each * 10)
    assert asked > 10
    assert sky.host.nodes() == ["b"] and "gone" not in sky.kinds("b")
    assert sky.kinds("a").count("unauthenticated") == 1, "an address is named once"


def test_more_who_say_nothing_than_may_be_opening_keep_no_node_out(sky):
    silent = [socket.create_connection((sky.place.address, sky.place.port)) for _ in range(MOST_OPENING + 20)]
    sky.until(lambda: sky.host._callers.num_refused == 20)
    for end in silent[:20]:
        assert len(end.recv(100)) == GREETING_BYTES and end.recv(1) == b"", "the oldest gives way"
    sky.joined("c")
    assert len(sky.host._callers._callers) <= MOST_OPENING
    for end in silent:
        end.close()


def test_who_sends_a_byte_now_and_then_has_as_little_time_as_others(sky, monkeypatch):
    monkeypatch.setattr(answering, "OPENING_S", 0.5)
    with socket.create_connection((sky.place.address, sky.place.port)) as slow:
        slow.settimeout(0.01)
        until, came = time.monotonic() + LIMIT_S, b"?"
        while came and time.monotonic() < until:
            try:
                slow.send(b"l")
                came = slow.recv(100)
            except TimeoutError:
                pass
            except OSError:
                came = b""
            sky.turn(0.02)
    assert came == b""


def test_a_caller_with_the_key_that_says_nothing_more_is_closed_too(sky, monkeypatch):
    monkeypatch.setattr(answering, "OPENING_S", 0.5)
    with socket.create_connection((sky.place.address, sky.place.port)) as end:
        sky.turn()
        caller = CallerHello(sky.key.secret, address_bytes(sky.place.address, sky.place.port))
        greeting = end.recv(GREETING_BYTES)
        end.send(caller.hello(greeting))
        sky.until(lambda: any(one.wire for one in sky.host._callers._callers))
        caller.session(greeting, end.recv(32))
        sky.until(lambda: not sky.host._callers._callers)
        assert end.recv(1) == b""
    assert sky.host.nodes() == ["b"]


def test_what_is_no_frame_ends_its_own_connection_alone(sky):
    sky.joined("c")
    wire = next(iter(sky.stars.pop("c").wires().values()))
    wire._end.send(b"\0\0\0\2{}" + bytes(16))
    sky.until(lambda: "gone" in sky.kinds("a"))
    assert sky.host.nodes() == ["b"]
    wire.close()


def test_more_callers_than_may_come_in_a_tick_wait_in_the_kernel(sky):
    monkey = [socket.create_connection((sky.place.address, sky.place.port)) for _ in range(MOST_IN_A_TICK + 20)]
    until = time.monotonic() + 0.2
    took = 0
    while time.monotonic() < until:
        sky.host.loop.turn()
        took = max(took, sky.host._callers._taken)
    assert took <= MOST_IN_A_TICK
    for end in monkey:
        end.close()


@pytest.mark.thorough
def test_a_flood_takes_less_than_a_twentieth_of_a_core(sky):
    flood = subprocess.Popen([sys.executable, "-c", FLOOD, str(sky.place.port)])
    used, began = time.thread_time(), time.monotonic()
    while flood.poll() is None:
        sky.turn()
    used, took = time.thread_time() - used, time.monotonic() - began
    assert sky.host._callers.num_refused > 100
    assert used < took / 20, f"{used:.2f} s of {took:.2f} s"


def test_a_key_of_another_run_is_none(sky):
    sky.node("c", key=Key.made())
    sky.until(lambda: "failed" in sky.kinds("c"))
    assert sky.host.nodes() == ["b"]
    assert HELLO_BYTES == 98
