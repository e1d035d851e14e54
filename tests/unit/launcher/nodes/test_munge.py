"""A key sealed with munge reaches the same user's nodes of the same job, through node 0; nobody else can open it."""

import os
import subprocess
import threading
from contextlib import contextmanager

import pytest

from samebits.errors import EnvironmentFailure, UsageError
from samebits.launcher.nodes import calling
from samebits.launcher.nodes import key as munge
from samebits.launcher.nodes.address import ListenAddress
from samebits.launcher.nodes.calling import Silent, key_of_job
from samebits.launcher.nodes.interfaces import listen
from samebits.launcher.nodes.key import Key, seal, unseal
from tests.support.stars import Sky

KEY = Key.made()


def answers():
    return munge.has_munge() and subprocess.run(["munge", "-n"], capture_output=True).returncode == 0


needs_munge = pytest.mark.skipif(not answers(), reason="needs munge and a running munged")


@contextmanager
def answering(seal=None):
    """A node 0 that answers in a thread."""
    sky, over = Sky(KEY, seal=seal), threading.Event()

    def serve():
        while not over.is_set():
            sky.turn(0.02)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield sky.place
    finally:
        over.set()
        thread.join()
        sky.close()


@pytest.fixture
def place():
    """A node 0 that gives the sealed key."""
    with answering(lambda: seal(KEY, "4711")) as place:
        yield place


@needs_munge
def test_the_nodes_of_a_job_get_the_key_from_node_0(place):
    assert [key_of_job(place, "4711") for _ in range(3)] == [KEY] * 3


@needs_munge
def test_another_job_is_refused(place):
    with pytest.raises(UsageError, match="belongs to job 4711, and this is job 4712"):
        key_of_job(place, "4712")


@needs_munge
def test_a_seal_is_opened_once():
    sealed = seal(KEY, "1")
    assert unseal(sealed, "1") == KEY
    with pytest.raises(EnvironmentFailure, match="Replayed credential"):
        unseal(sealed, "1")


@needs_munge
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_can_neither_open_a_seal_nor_offer_one():
    def as_nobody(command, content):
        return subprocess.run(command, input=content, capture_output=True, user=65534, group=65534)

    opened = as_nobody(["unmunge"], seal(KEY, "1"))
    assert opened.returncode and KEY.secret not in opened.stdout
    offered = as_nobody(["munge"], b'{"job": "1", "key": "%b"}' % KEY.secret).stdout
    with pytest.raises(UsageError, match="Another user's process answers"):
        unseal(offered, "1")


@needs_munge
def test_the_key_is_in_no_argument_and_not_readable_in_the_seal(monkeypatch):
    ran = []
    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **more: ran.append(command) or real(command, **more))
    sealed = seal(KEY, "1")
    assert ran and not any(KEY.secret.decode() in word for command in ran for word in command)
    assert KEY.secret not in sealed


def test_a_node_0_without_a_sealed_key_is_a_sentence():
    with (
        answering() as place,
        pytest.raises(EnvironmentFailure, match=f"^Node 0 at {place} gives no key sealed with munge"),
    ):
        key_of_job(place, "1")


def test_a_node_0_that_begins_slowly_may_be_asked_for_the_key_again(monkeypatch):
    monkeypatch.setattr(calling, "ANSWER_S", 0.2)
    with (
        listen(ListenAddress("127.0.0.1", 0)) as listener,
        pytest.raises(Silent, match="does not answer: node 0 still begins"),
    ):
        key_of_job(ListenAddress("127.0.0.1", listener.getsockname()[1]), "1")


def test_munge_that_is_missing_is_a_sentence(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert not munge.has_munge()
    for act in (lambda: seal(KEY, "1"), lambda: unseal(b"MUNGE:", "1")):
        with pytest.raises(
            EnvironmentFailure, match=r"munge does not answer .*: start munged on this node, or use --key-file"
        ):
            act()
