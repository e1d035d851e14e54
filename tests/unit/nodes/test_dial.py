"""Whatever is at the endpoint instead of the gate, the tunnel says what in one sentence, and leaves nothing open."""

import contextlib
import errno
import os
import socket
import ssl
import threading
from pathlib import Path

import pytest

from lockstep.errors import UsageError, WorldError
from lockstep.nodes import dial
from lockstep.nodes.address import Place
from lockstep.nodes.dial import NotYet, why_not
from lockstep.nodes.door import Door
from lockstep.nodes.interfaces import listen
from lockstep.nodes.key import Key
from lockstep.nodes.tunnel import LONGEST_HELLO, Tunnel

KEY = Key.made()


@pytest.fixture
def listener():
    with listen(Place("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        yield listener


def peer(descriptor):
    """What a socket of this process is connected to."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
        return copy.getpeername()


def refusal(listener, kind):
    place = Place("127.0.0.1", listener.getsockname()[1])
    with pytest.raises(kind) as refused:
        Tunnel(place, KEY, {"node": "1"}, print).start()
    assert (place.address, place.port) not in [peer(int(path.name)) for path in Path("/proc/self/fd").iterdir()]
    assert "lockstep-tunnel" not in [thread.name for thread in threading.enumerate()]
    return str(refused.value).replace(str(place), "PLACE")


@contextlib.contextmanager
def answering(listener, answer):
    """Accepts one connection and answers its first words; closes it at once if that is nothing."""

    def serve():
        with listener.accept()[0] as connection:
            connection.recv(4096)
            connection.sendall(answer)
            answered.wait(20)

    answered, thread = threading.Event(), threading.Thread(target=serve)
    if not answer:
        answered.set()
    thread.start()
    yield
    answered.set()
    thread.join()


def test_a_firewall_that_drops_everything_is_not_waited_for(listener, monkeypatch):
    monkeypatch.setattr(dial, "ANSWER_S", 0.2)
    door = Door(listener)
    assert refusal(listener, WorldError).startswith(
        "Nothing answers at PLACE: the machine is down, or a firewall drops"
    )
    door.close()


def test_a_program_that_says_nothing_is_not_waited_for(listener, monkeypatch):
    monkeypatch.setattr(dial, "ANSWER_S", 0.2)
    assert refusal(listener, WorldError).startswith("What listens at PLACE does not answer: node 0 is stopped, or")


def test_another_program_is_named_as_one(listener):
    with answering(listener, b"HTTP/1.1 400 Bad Request\r\n\r\n"):
        assert refusal(listener, UsageError).startswith("What listens at PLACE is not node 0 of a run of lockstep.")


def test_a_connection_that_is_closed_at_once_may_be_node_0_that_begins(listener):
    with answering(listener, b""):
        assert refusal(listener, NotYet).startswith("Node 0 at PLACE broke off before the connection was open")


def test_an_address_of_another_machine_to_come_from_is_refused():
    place = Place("127.0.0.1", 9, source="192.0.2.77")
    with pytest.raises(UsageError, match=r"^192\.0\.2\.77 is not an address of this machine"):
        Tunnel(place, KEY, {"node": "1"}, print).start()


def test_every_error_of_a_network_is_a_sentence_with_the_place():
    place = Place("10.0.0.1", 29500)
    for number in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM, errno.ENETDOWN):
        said = str(why_not(OSError(number, os.strerror(number)), place, is_connected=False))
        assert said.startswith(f"10.0.0.1:29500 cannot be reached from this machine ({os.strerror(number)}): ")
    for error in (ConnectionResetError(), ssl.SSLEOFError(), BrokenPipeError(), ssl.SSLZeroReturnError()):
        assert isinstance(why_not(error, place, is_connected=True), NotYet)
    assert isinstance(why_not(socket.gaierror(-2, "x"), place, is_connected=False), WorldError)


def test_a_node_that_tells_too_much_about_itself_is_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="at most"):
        Tunnel(Place("127.0.0.1", 9), KEY, {"node": "1", "more": "x" * LONGEST_HELLO}, print)
