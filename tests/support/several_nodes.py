"""Start the launchers of several nodes on this machine, all on loopback, each in a folder of its own."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

from tests.support.launching import Running, start

KEY = "0123456789abcdef0123456789abcdef0123"


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago: all nodes must know it before the first one listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def write_key(place: Path) -> Path:
    """A file with a key for the nodes of a run."""
    key = place / "key"
    key.touch(mode=0o600)
    key.write_text(KEY)
    return key


@contextlib.contextmanager
def start_nodes(place: Path, count: int, port: int, *options: str) -> Iterator[list[Running]]:
    """As `nodes`, with node 0 at this port."""
    endpoint, started = f"127.0.0.1:{port}", []
    key = write_key(place)
    try:
        for number in range(count):
            folder = place / f"node{number}"
            folder.mkdir()
            where = ("--nnodes", str(count), "--node-rank", str(number), "--rdzv-endpoint", endpoint)
            started.append(start(folder, *where, "--key-file", str(key), *options))
        yield started
    finally:
        for run in started:
            run.clean_up()


def nodes(place: Path, count: int, *options: str) -> contextlib.AbstractContextManager[list[Running]]:
    """`samebits run --nnodes COUNT OPTIONS` on each of `count` nodes; what still runs is killed at the end.

    Args:
        place: has a folder `node0` and so on for each afterwards.
        count: how many.
        options: the same on all; the script by its absolute path.
    """
    return start_nodes(place, count, free_port(), *options)
