"""Where tasks meet: rank 0 listens on one address only, and what cannot be is said in a sentence."""

import os
import socket
import threading

import pytest

from samebits.errors import UsageError
from samebits.protocol.tasks.meeting import TaskMeeting
from samebits.protocol.tasks.task import Task
from samebits.rank.init.task_store import task_store
from samebits.testing.ranks import Started, run_ranks
from tests.support.launching import listening_addresses


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def task(rank=0, **other):
    told = {"local_rank": rank, "local_size": 2, "nodes": 1, "node": 0, "hosts": (), "job": "7", **other}
    return Task("MPICH", "mpirun", rank, 2, **told)


def meet(port, places):
    """As a rank: the addresses where it listens, or why it was refused."""
    rank = int(os.environ["RANK"])
    try:
        store = task_store(task(rank, local_rank=places[rank]), TaskMeeting("127.0.0.1", port))
    except UsageError as error:
        return str(error)
    store.set(f"from {rank}", "")
    store.wait([f"from {1 - rank}"])
    listens = listening_addresses([os.getpid()])
    if rank == 1:
        store.set("seen", "")
    else:
        store.wait(["seen"])
    return listens


@pytest.mark.ranks
def test_two_tasks_meet_and_only_loopback_listens():
    assert run_ranks(meet, Started(2), free_port(), (0, 1)) == [{"0100007F"}, set()]


@pytest.mark.ranks
def test_ranks_that_are_no_neighbours_are_refused_on_every_rank():
    for said in run_ranks(meet, Started(2), free_port(), (1, 0)):
        assert "mpirun dealt the ranks out in turn" in said


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(UsageError) as caught:
            task_store(task(), TaskMeeting("127.0.0.1", port))
    assert str(caught.value) == (
        f"Port {port} of 127.0.0.1, where the tasks meet, is taken. Set MASTER_PORT to a free one for all tasks."
    )


@pytest.mark.thorough
def test_another_program_where_rank_0_should_be_is_named():
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_answer, args=(server,), daemon=True).start()
        with pytest.raises(UsageError, match="where the tasks meet, is not rank 0"):
            task_store(task(1), TaskMeeting("127.0.0.1", server.getsockname()[1]))


def _answer(server):
    try:
        while True:
            accepted, _ = server.accept()
            accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            accepted.close()
    except OSError:
        return


@pytest.mark.parametrize(
    ("host", "others", "said"),
    [
        ("192.0.2.77", (), "192.0.2.77, where the tasks meet, is not this node, but this is rank 0."),
        ("no-such-host.invalid", (), "no-such-host.invalid, where the tasks meet, is not a host that this node knows."),
        ("localhost", ("no-such-host.invalid",), "localhost, where the tasks meet, is a loopback address here"),
    ],
)
def test_a_host_that_cannot_be_rank_0s_is_named(host, others, said):
    with pytest.raises(UsageError) as caught:
        task_store(task(nodes=2), TaskMeeting(host, free_port(), others))
    assert str(caught.value).startswith(said)
