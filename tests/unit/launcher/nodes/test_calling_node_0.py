"""Whatever is at the endpoint instead of node 0, a node says what in one sentence, and leaves nothing open."""

import contextlib
import errno
import os
import socket
import threading
from pathlib import Path

import pytest

from samebits.errors import EnvironmentFailure, UsageError
from samebits.launcher.nodes import calling
from samebits.launcher.nodes.address import ListenAddress
from samebits.launcher.nodes.calling import NotYet, Silent, Unreachable, call, why_not_connected, why_rejected
from samebits.launcher.nodes.door import Door
from samebits.launcher.nodes.interfaces import listen
from samebits.launcher.nodes.key import Key
from samebits.launcher.nodes.node_star import NodeStar
from samebits.launcher.nodes.session import HostHello
from samebits.launcher.nodes.wire import WireEnded
from tests.support.stars import Sky

KEY = Key.made()


@pytest.fixture
def listener():
    with listen(ListenAddress("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        yield listener


def peers():
    """What the sockets of this process are connected to."""
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if str(path.readlink()).startswith("socket:"):
                with socket.socket(fileno=os.dup(int(path.name))) as copy:
                    yield copy.getpeername()


def refusal(listener, kind):
    place = ListenAddress("127.0.0.1", listener.getsockname()[1])
    with pytest.raises(kind) as refused:
        call(place, KEY, "b")
    assert (place.address, place.port) not in peers()
    return str(refused.value).replace(str(place), "PLACE")


@contextlib.contextmanager
def answering(listener, answer):
    """Accepts one connection and answers its first words; closes it at once if that is nothing."""

    def serve():
        with listener.accept()[0] as connection:
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
    monkeypatch.setattr(calling, "ANSWER_S", 0.2)
    door = Door(listener)
    assert refusal(listener, Unreachable).startswith(
        "Nothing answers at PLACE: the machine is down, or a firewall drops"
    )
    door.close()


def test_a_program_that_says_nothing_may_be_node_0_that_begins(listener, monkeypatch):
    monkeypatch.setattr(calling, "ANSWER_S", 0.2)
    assert refusal(listener, Silent).startswith("What listens at PLACE does not answer: node 0 still begins, is")


def test_another_program_is_named_as_one(listener):
    with answering(listener, b"HTTP/1.1 400 Bad Request\r\n\r\n"):
        assert refusal(listener, UsageError).startswith("What listens at PLACE is not node 0 of a run of this version")


def test_a_connection_that_is_closed_at_once_may_be_node_0_that_begins(listener):
    with answering(listener, b""):
        assert refusal(listener, NotYet).startswith("Node 0 at PLACE broke off before the connection was open")


def test_an_address_of_another_machine_to_come_from_is_refused():
    place = ListenAddress("127.0.0.1", 9, source="192.0.2.77")
    with pytest.raises(UsageError, match=r"^192\.0\.2\.77 is not an address of this machine"):
        call(place, KEY, "b")


def test_every_error_of_a_network_is_a_sentence_with_the_place():
    place = ListenAddress("10.0.0.1", 29500)
    for number in (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EACCES, errno.EPERM, errno.ENETDOWN):
        printed = str(why_not_connected(OSError(number, os.strerror(number)), place))
        assert printed.startswith(f"10.0.0.1:29500 cannot be reached from this machine ({os.strerror(number)}). ")
    for error in (ConnectionResetError(), BrokenPipeError(), WireEnded("it has ended")):
        assert isinstance(why_rejected(error, place), NotYet)
    assert isinstance(why_not_connected(socket.gaierror(-2, "x"), place), EnvironmentFailure)


def test_node_0_that_cannot_use_its_own_key_is_named(listener):
    with answering(listener, HostHello(None).greeting):
        assert refusal(listener, UsageError).startswith(
            "Node 0 at PLACE cannot use its key, and says why. Look at what"
        )


def test_node_0_of_a_run_at_another_address_with_the_same_key_is_named():
    sky = Sky(KEY, meant=[])
    star = NodeStar("b", ListenAddress("127.0.0.2", sky.place.port), KEY, "", 20.0)
    listening = listen(ListenAddress("127.0.0.2", sky.place.port))
    sky.host._callers._listener, there = listening, sky.host._callers._listener
    listening.setblocking(False)
    sky.host.loop.watch(listening, sky.host._callers._accept)
    sky.stars["b"], sky.heard["b"] = star, []
    sky.until(lambda: "failed" in sky.kinds("b"))
    assert "is node 0 of a run at another address" in sky.heard["b"][-1]["why"]
    there.close()
    sky.close()
