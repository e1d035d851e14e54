"""What the nursery does when the kernel makes no process more: it tells the launcher, and lives."""

from __future__ import annotations

import multiprocessing
import os
import resource
import socket
from pathlib import Path

from samebits.protocol.nursery_messages import Channel, Message, NotSpawned, Spawn, StartStore
from samebits.rank.start.nursery import Nursery

NOBODY = 65534


def serve_without_processes(ours: socket.socket, theirs: socket.socket) -> None:
    """A nursery of a user who may start nothing more."""
    ours.close()
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    if os.geteuid() == 0:  # root may start what it likes
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    Nursery(Channel(theirs)).run()


def test_the_launcher_is_told_of_every_process_that_the_kernel_refuses():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = multiprocessing.get_context("fork").Process(target=serve_without_processes, args=(ours, theirs))
    process.start()
    theirs.close()
    launcher, told = Channel(ours), []
    ours.settimeout(20)
    orders: list[tuple[Message, int]] = [(Spawn(3, False), 5), (StartStore(1, 2), 1)]
    with Path(os.devnull).open("rb") as null:
        for order, num_descriptors in orders:
            launcher.send(order, [null.fileno()] * num_descriptors)
            told.append(launcher.receive()[0])
    ours.close()
    process.join(20)
    assert process.exitcode == 0
    assert [type(one) for one in told] == [NotSpawned] * 2
    for one, what in zip(told, ("rank 3", "the store at MASTER_PORT"), strict=True):
        assert isinstance(one, NotSpawned)
        assert str(one.failure).startswith(f"There is no process for {what}: Resource temporarily unavailable.")
