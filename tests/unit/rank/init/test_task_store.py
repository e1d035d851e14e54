"""Where tasks meet: rank 0 listens on one address only, and what cannot be is said in a sentence."""

import socket
import subprocess
import sys
import textwrap
import threading

import pytest

from lockstep.errors import UsageError
from lockstep.protocol.tasks.meeting import TaskMeeting
from lockstep.protocol.tasks.task import Task
from lockstep.rank.init.task_store import task_store
from tests.support.launching import LIMIT_S, listening_addresses

MEET = """
    import os, sys
    from lockstep.protocol.tasks.meeting import TaskMeeting
    from lockstep.protocol.tasks.task import Task
    from lockstep.rank.init.task_store import task_store

    rank, port = int(sys.argv[1]), int(sys.argv[2])
    task = Task("MPICH", "mpirun", rank, 2, int(sys.argv[3]), 2, 1, 0, (), "7")
    store = task_store(task, TaskMeeting("127.0.0.1", port))
    store.set(f"from {rank}", "")
    store.wait([f"from {1 - rank}"])
    print("met", flush=True)
    sys.stdin.read()
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def task(rank=0, **other):
    told = {"local_rank": rank, "local_size": 2, "nodes": 1, "node": 0, "hosts": (), "job": "7", **other}
    return Task("MPICH", "mpirun", rank, 2, **told)


def begin(rank, port, local_rank):
    command = [sys.executable, "-c", textwrap.dedent(MEET), str(rank), str(port), str(local_rank)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_two_tasks_meet_and_only_loopback_listens():
    port = free_port()
    tasks = [begin(rank, port, rank) for rank in (0, 1)]
    assert [one.stdout.readline() for one in tasks] == ["met\n", "met\n"]
    assert listening_addresses([tasks[0].pid]) == {"0100007F"}
    assert listening_addresses([tasks[1].pid]) == set()
    for one in reversed(tasks):
        assert one.communicate(timeout=LIMIT_S)[1].count("Traceback") == 0
        assert one.returncode == 0


@pytest.mark.thorough
def test_ranks_that_are_no_neighbours_are_refused_on_every_rank():
    port = free_port()
    tasks = [begin(rank, port, 1 - rank) for rank in (0, 1)]
    for one in tasks:
        assert "mpirun dealt the ranks out in turn" in one.communicate(timeout=LIMIT_S)[1]
        assert one.returncode != 0


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
