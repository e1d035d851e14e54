"""What the launcher makes for the ranks to meet: a private memory, and a port that is taken but silent."""

from __future__ import annotations

import errno
import os
import socket
import stat

import pytest

from samebits.launcher.supervise.starting import TABLE_BYTES, RunStore


def test_the_memory_is_private_empty_and_keeps_its_size() -> None:
    with RunStore(None, 2) as store:
        status = os.fstat(store.table)
        assert (stat.S_IMODE(status.st_mode), status.st_size, status.st_blocks) == (0o600, TABLE_BYTES, 0)
        assert not os.get_inheritable(store.table)
        for size in (0, 2 * TABLE_BYTES):
            with pytest.raises(PermissionError):
                os.ftruncate(store.table, size)


def test_the_port_is_taken_but_nobody_listens() -> None:
    with RunStore(None, 2) as store, RunStore(None, 2) as other:
        assert store.port != other.port
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", store.port))
        with socket.socket() as stranger, pytest.raises(OSError, match="in use") as refused:
            stranger.bind(("127.0.0.1", store.port))
        assert refused.value.errno == errno.EADDRINUSE


def test_nothing_stays_open() -> None:
    with RunStore(None, 2) as store:
        descriptors = store.descriptors
    for descriptor in descriptors:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)
