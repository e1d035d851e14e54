"""On node 0 only the star reaches the port of torchrun's store, and only processes of the same user reach an entrance to it."""

import contextlib
import datetime as dt
import os
import select
import socket
import subprocess
import sys
import threading

import pytest
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from samebits.errors import EnvironmentFailure
from samebits.launcher.nodes.address import ListenAddress
from samebits.launcher.nodes.door import MOST_LISTED, Door, is_own_process, owner, program
from samebits.launcher.nodes.interfaces import listen
from samebits.launcher.nodes.streams import Entrance, Exit
from samebits.torchrun_rendezvous import RoundStores
from tests.support.promises import promise
from tests.support.stars import Sky

LIMIT = dt.timedelta(seconds=20)
only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


def knocks(address, *, source=None):
    """Whether a connection gets in."""
    with contextlib.closing(socket.socket()) as end:
        if source:
            end.bind(source)
        end.settimeout(0.3)
        with contextlib.suppress(TimeoutError):
            end.connect(address)
            return True
    return False


@pytest.fixture
def listener():
    with listen(ListenAddress("127.0.0.1", 0)) as listener:
        listener.settimeout(20)
        yield listener


def test_a_locked_door_lets_in_the_listed_ports_of_127_0_0_1_alone(listener):
    address = listener.getsockname()
    with socket.create_connection(address) as before, listener.accept()[0] as inside, socket.socket() as held:
        door = Door(listener)
        assert not knocks(address)
        held.bind(("127.0.0.1", 0))
        door.let_in(held.getsockname()[1])
        assert not knocks(address)
        assert not knocks(address, source=("127.0.0.2", held.getsockname()[1]))
        held.connect(address)
        with listener.accept()[0] as accepted:
            door.forget(held.getsockname()[1])
            for one, other in ((held, accepted), (before, inside)):
                one.sendall(b"it goes on")
                assert other.recv(64) == b"it goes on"
        assert not knocks(address)
        door.close()
        assert not knocks(address), "it stays locked"


def test_a_door_lists_the_newest_ports_only(listener):
    door = Door(listener)
    for port in range(1000, 3000):
        door.let_in(port)
    door.forget(1)
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        door.let_in(held.getsockname()[1])
        held.settimeout(20)
        held.connect(listener.getsockname())
        listener.accept()[0].close()
    assert len(program(list(range(MOST_LISTED)))) // 8 < 4096, "the kernel's limit"
    door.close()


@contextlib.contextmanager
def streaming(connect):
    """An entrance of a second node, and node 0, where streams come out; served by a thread."""
    sky, over = Sky(), threading.Event()
    exit = Exit(sky.host, connect)
    sky.joined("b")
    listener = listen(ListenAddress("127.0.0.1", 0))
    entrance = Entrance(sky.stars["b"], listener, "7")

    def serve():
        while not over.is_set():
            sky.turn(0.02)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield entrance, listener.getsockname()[1]
    finally:
        over.set()
        thread.join()
        entrance.close()
        listener.close()
        exit.close()
        sky.close()


@promise(
    "shut",
    "Under torchrun only samebits's own connection reaches the store's port, and other users' connections are closed",
    also=["test_an_entrance_closes_the_connections_of_another_user"],
)
def test_the_star_reaches_a_locked_store_and_nobody_else_does():
    sky = Sky()
    stores = RoundStores(sky.host)
    stores.serve(7)
    sky.close()
    store, _ = stores._served[7]
    with streaming(stores._connected) as (_, port):
        clients = [dist.TCPStore("127.0.0.1", port, None, False, LIMIT) for _ in range(5)]
        clients[0].set("x", "1" * 1_000_000)
        assert [client.get("x") for client in clients] == [b"1" * 1_000_000] * 5
        assert not knocks(("127.0.0.1", store.port))
        assert stores._connected("8") is None
        del clients
    stores.close()
    assert store.get("x").startswith(b"1"), "the store's own client goes on"


def test_streams_of_an_entrance_that_is_closed_end_on_both_sides_and_are_not_those_of_the_next_one():
    sky, others = Sky(), []

    def connect(_to):
        ours, theirs = socket.socketpair()
        others.append(theirs)
        return ours

    exit = Exit(sky.host, connect)
    sky.joined("b")
    for number in range(2):
        with listen(ListenAddress("127.0.0.1", 0)) as listener:
            entrance = Entrance(sky.stars["b"], listener, str(number))
            with socket.create_connection(listener.getsockname()) as end:
                sky.until(lambda number=number: len(others) == number + 1)
                end.sendall(b"hello")
                sky.until(lambda: bool(select.select([others[-1]], [], [], 0)[0]))
                assert others[-1].recv(10) == b"hello"
                entrance.close()
                sky.until(lambda: bool(select.select([others[-1]], [], [], 0)[0]))
                assert others[-1].recv(10) == b""
    exit.close()
    for other in others:
        other.close()
    sky.close()


def test_a_stream_to_what_is_not_there_ends():
    with (
        streaming(lambda _to: None) as (_, port),
        socket.create_connection(("127.0.0.1", port)) as end,
    ):
        end.settimeout(20)
        assert end.recv(1) == b""


VISITOR = """
import encodings.idna, os, socket, sys
os.setuid(65534)
end = socket.socket(getattr(socket, sys.argv[1]))
end.connect((sys.argv[2], int(sys.argv[3])))
print(flush=True)
input()
"""
KINDS = [("AF_INET", "127.0.0.1"), ("AF_INET6", "::ffff:127.0.0.1")]


@contextlib.contextmanager
def visited(listener, family, host):
    """A process of another user is connected; it ends when its input does."""
    command = [sys.executable, "-c", VISITOR, family, host, str(listener.getsockname()[1])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout.readline()
            with listener.accept()[0] as connection:
                yield connection, other
        finally:
            other.kill()


@only_root
@pytest.mark.parametrize(("family", "host"), KINDS)
def test_a_door_is_not_locked_behind_another_user_who_is_in_already(listener, family, host):
    with (
        visited(listener, family, host),
        pytest.raises(EnvironmentFailure, match=r"^A process of user 65534 connected to the store of this run"),
    ):
        Door(listener)


@only_root
@pytest.mark.parametrize(("family", "host"), KINDS)
def test_a_process_of_another_user_is_not_taken_for_our_own(listener, family, host):
    with visited(listener, family, host) as (connection, other):
        assert not is_own_process(connection)
        other.stdin.close()
        other.wait()
        assert not is_own_process(connection), "nobody holds the other end now, and the kernel says root"


@only_root
def test_an_entrance_closes_the_connections_of_another_user():
    with streaming(lambda _to: None) as (entrance, port):
        program = VISITOR.replace("input()", "print(end.recv(1))")
        command = [sys.executable, "-c", program, "AF_INET", "127.0.0.1", str(port)]
        assert subprocess.run(command, capture_output=True, timeout=60).stdout == b"\nb''\n"
        assert entrance.num_refused == 1


def test_a_process_of_our_user_is_known_by_each_kind_of_socket(listener):
    port = listener.getsockname()[1]
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::ffff:127.0.0.1")):
        with socket.socket(family) as end:
            end.connect((host, port))
            with listener.accept()[0] as connection:
                assert is_own_process(connection)


@given(
    st.integers(0, 65535),
    st.integers(0, 65535),
    st.integers(0, 2**31),
    st.sampled_from(["01", "08", "06", "0A"]),
    st.booleans(),
)
def test_the_owner_is_that_of_the_connected_socket(local, remote, user, state, is_held):
    row = (
        f"   1: 0100007F:{local:04X} 0100007F:{remote:04X} {state} 00000000:00000000 00:00000000 00000000 {user:5} 0 "
        f"{17 if is_held else 0} 1 0000 100 0\n"
    ).encode()
    other = b"   0: 0100007F:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1 0 9 1 0000 100 0\n"
    expected = user if is_held and state in ("01", "08") else None
    assert owner(other + row, ("127.0.0.1", local), ("127.0.0.1", remote)) == expected
    assert owner(other, ("127.0.0.1", local), ("127.0.0.1", remote)) is None
