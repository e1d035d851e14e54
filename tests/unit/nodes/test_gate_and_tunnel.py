"""A real store behind the gate: who has the key uses it as its own, everybody else is closed."""

import datetime as dt
import socket
import time

import pytest
import torch.distributed as dist

from lockstep.errors import UsageError
from lockstep.nodes.address import Place
from lockstep.nodes.dial import NotYet
from lockstep.nodes.gate import Gate, NodeCame, NodeGone, StrangerCame
from lockstep.nodes.key import Key
from lockstep.nodes.tunnel import GateLost, Tunnel

KEY = Key.made()
LIMIT = dt.timedelta(seconds=20)


def bound():
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    return listener


def until(is_so, limit_s=20.0):
    """Wait until something another thread does has happened."""
    end = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


@pytest.fixture(scope="module")
def store():
    """A real store on 127.0.0.1; its port."""
    listener = bound()
    listener.listen(64)
    port = listener.getsockname()[1]
    server = dist.TCPStore(
        "127.0.0.1", port, 1, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach(), timeout=LIMIT
    )
    yield port
    del server


@pytest.fixture
def gate(store):
    events = []
    listener = bound()
    listener.listen()
    gate = Gate(listener, store, KEY, events.append)
    gate.events, gate.place = events, Place("127.0.0.1", listener.getsockname()[1])
    gate.start()
    yield gate
    gate.close()


@pytest.fixture
def dug(gate):
    """Makes tunnels to the gate, and closes them."""
    made = []

    def dig(node="1", key=KEY, **hello):
        tunnel = Tunnel(gate.place, key, {"node": node, **hello}, made.append)
        made.append(tunnel)
        return tunnel.start()

    yield dig
    for tunnel in made:
        if isinstance(tunnel, Tunnel):
            tunnel.close()


def client(tunnel):
    return dist.TCPStore("127.0.0.1", tunnel.port, 1, is_master=False, timeout=LIMIT)


def test_what_one_node_sets_another_gets(dug):
    one, other = client(dug("0")), client(dug("1"))
    big = bytes(range(256)) * 30_000  # a store takes 8 MiB at most
    one.set("small", "1")
    one.set("big", big)
    assert (other.get("small"), other.get("big")) == (b"1", big)
    assert other.compare_set("small", "1", "2") == b"2"


def test_the_gate_tells_who_came_and_who_is_gone(gate, dug):
    tunnel = dug("7", host="h7")
    client(tunnel)
    until(lambda: len(gate.nodes()["7"].connections) == 1 + 1)
    tunnel.close()
    until(lambda: len(gate.events) == 2)
    assert gate.events[0].node == "7" and gate.events[0].hello["host"] == "h7"
    assert [type(event) for event in gate.events] == [NodeCame, NodeGone]
    assert gate.nodes() == {}


def test_a_silent_link_is_told_by_when_it_was_heard_last(gate, dug):
    tunnel = dug("1")
    before = gate.nodes()["1"].heard_at, tunnel.heard_at
    until(lambda: gate.nodes()["1"].heard_at > before[0] and tunnel.heard_at > before[1])


def test_another_key_is_a_sentence_for_whoever_has_it(gate, dug):
    with pytest.raises(
        UsageError, match=r"^This node's key is not that of node 0 at 127\.0\.0\.1:\d+\. Give every node the same key"
    ):
        dug(key=Key.made())
    until(lambda: gate.num_refused == 1)
    assert gate.events == [StrangerCame("127.0.0.1")]


def test_where_nobody_listens_is_a_sentence_after_the_patience_has_ended():
    with bound() as free:
        tunnel = Tunnel(Place("127.0.0.1", free.getsockname()[1]), KEY, {"node": "1"}, print)
    with pytest.raises(NotYet, match=r"^Nobody listens at 127"):
        tunnel.start(patience_s=0.1)


def test_a_node_that_was_given_up_does_not_come_back(gate, dug):
    tunnel = dug("1")
    lost = []
    tunnel._on_event = lost.append
    gate.bar("1")
    until(lambda: lost)
    assert isinstance(lost[0], GateLost)
    with pytest.raises(UsageError, match="does not let this node in"):
        dug("1")
