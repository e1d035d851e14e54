"""Bytes come out as they went in, however slowly somebody reads, and in both directions at once."""

import hashlib
import socket
import threading

import pytest

from lockstep.nodes.address import Place
from lockstep.nodes.gate import Gate
from lockstep.nodes.interfaces import listen
from lockstep.nodes.key import Key
from lockstep.nodes.pair import PIECE_BYTES
from lockstep.nodes.tunnel import Tunnel

TOTAL = 64 << 20
"""More than all sockets on the way can hold."""


@pytest.fixture
def ends():
    """A connection through a tunnel and a gate: both of its ends."""
    key, front = Key.made(), listen(Place("127.0.0.1", 0))
    with listen(Place("127.0.0.1", 0)) as behind:
        gate = Gate(front, behind.getsockname()[1], key, print)
        place = Place("127.0.0.1", front.getsockname()[1])
        gate.start()
        tunnel = Tunnel(place, key, {"node": "1"}, print).start()
        with socket.create_connection(("127.0.0.1", tunnel.port)) as one, behind.accept()[0] as other:
            one.settimeout(60)
            other.settimeout(60)
            yield one, other
        tunnel.close()
        gate.close()


def pattern(seed):
    return hashlib.shake_256(seed).digest(1 << 20) * (TOTAL >> 20)


def read(end, num_bytes, piece):
    found = hashlib.sha256()
    while num_bytes:
        data = end.recv(min(piece, num_bytes))
        assert data, "it ended too early"
        found.update(data)
        num_bytes -= len(data)
    return found.hexdigest()


def test_nothing_is_lost_when_both_sides_send_more_than_the_way_can_hold(ends):
    sent = [pattern(b"up"), pattern(b"down")]
    senders = [threading.Thread(target=end.sendall, args=(data,)) for end, data in zip(ends, sent, strict=True)]
    for sender in senders:
        sender.start()
    senders[0].join(timeout=0.2)
    assert senders[0].is_alive(), "nobody reads, so nobody can send on"
    pieces = zip(reversed(ends), sent, (777, PIECE_BYTES), strict=True)
    found = []
    readers = [
        threading.Thread(target=lambda end=end, data=data, piece=piece: found.append((read(end, TOTAL, piece), data)))
        for end, data, piece in pieces
    ]
    for thread in readers:
        thread.start()
    for thread in [*senders, *readers]:
        thread.join()
    assert len(found) == 2
    assert all(hash_ == hashlib.sha256(data).hexdigest() for hash_, data in found)


def test_what_was_sent_before_an_end_arrives_before_the_end(ends):
    one, other = ends
    last_words = b"x" * 300_000
    one.sendall(last_words)
    one.close()
    assert read(other, len(last_words), PIECE_BYTES) == hashlib.sha256(last_words).hexdigest()
    assert other.recv(1) == b""


def test_a_reset_ends_the_other_side(ends):
    one, other = ends
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    one.close()
    assert other.recv(1) == b""
