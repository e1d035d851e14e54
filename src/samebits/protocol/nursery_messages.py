"""Messages between the launcher and the nursery: one per packet, with file descriptors. On the wire, JSON with the class's name."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from samebits.errors import EnvironmentFailure, SamebitsError
from samebits.machine.processes import address_limit
from samebits.protocol.installation import failed_import
from samebits.protocol.records import plain, restored


@dataclass(frozen=True)
class MakeView:
    """To the nursery: give later ranks a private view of the file system (`private_view`)."""

    folder: str
    num_runs: int = 1
    """After how many runs it ends."""


@dataclass(frozen=True)
class Spawn:
    """To the nursery: start a rank. Descriptors: order, stdin, stdout, stderr, news, table, socket of the port."""

    rank: int
    spawns: bool
    """Whether it becomes a new interpreter."""


@dataclass(frozen=True)
class StartStore:
    """To the nursery: start a TCPStore. Descriptor: socket of the port."""

    port: int
    world_size: int


@dataclass(frozen=True)
class Signal:
    """To the nursery: send a signal to ranks."""

    number: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Sweep:
    """To the nursery: kill everything that descends from it."""


@dataclass(frozen=True)
class Ready:
    """To the launcher: everything is imported."""

    tasks: int


@dataclass(frozen=True)
class Broken:
    """To the launcher: a module cannot be imported."""

    module: str
    error: str

    @property
    def failure(self) -> SamebitsError:
        return failed_import(self.module, self.error, address_limit())


@dataclass(frozen=True)
class ViewMade:
    """To the launcher: see `ViewReport`."""

    problem: str
    real: tuple[str, ...]


@dataclass(frozen=True)
class Spawned:
    """To the launcher: the process of a rank."""

    rank: int
    pid: int


@dataclass(frozen=True)
class NotSpawned:
    """To the launcher: the kernel makes no process for a rank, or for what else the run needs."""

    what: str
    why: str

    @property
    def failure(self) -> SamebitsError:
        return EnvironmentFailure(
            f"There is no process for {self.what}: {self.why}. Start fewer ranks, end other processes, or raise `ulimit -u`."
        )


@dataclass(frozen=True)
class Exited:
    """To the launcher: a rank has ended."""

    rank: int
    code: int
    signal: int
    """0 when no signal ended it."""
    time_ns: int
    """Of `time.monotonic_ns`."""
    peak_bytes: int
    """The most memory that it, or a child that it has reaped, ever held."""


@dataclass(frozen=True)
class Signalled:
    """To the launcher: a signal was sent."""


@dataclass(frozen=True)
class Swept:
    """To the launcher: nothing is left."""

    processes: int


Message = (
    MakeView
    | Spawn
    | StartStore
    | Signal
    | Sweep
    | Ready
    | Broken
    | ViewMade
    | Spawned
    | NotSpawned
    | Exited
    | Signalled
    | Swept
)
_KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> bytes:
    return json.dumps([type(message).__name__, plain(message)]).encode()


def decode(data: bytes) -> Message:
    """The inverse of `encode`."""
    name, fields = json.loads(data)
    return restored(_KINDS[name], fields)


MAX_BYTES = 1 << 16
MAX_DESCRIPTORS = 8
FULL_S = 5
"""How many seconds the launcher waits for room in the socket of a nursery that does not read."""


class ChannelClosed(ConnectionError):  # noqa: N818 - an event as much as an error
    """The other side is gone."""


class Channel:
    """One end of the pair."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def fileno(self) -> int:
        """For a selector."""
        return self._end.fileno()

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send one message; the descriptors are duplicated, the sender's stay open.

        Raises:
            ChannelClosed: when the other side is gone, or has not read for `FULL_S`.
        """
        try:
            socket.send_fds(self._end, [encode(message)], descriptors)
        except (BrokenPipeError, ConnectionResetError, BlockingIOError) as error:
            raise ChannelClosed(str(error)) from error

    def receive(self) -> tuple[Message, list[int]]:
        """Return the next message and its descriptors (close-on-exec).

        Raises:
            ChannelClosed: when the other side is gone.
        """
        try:
            data, descriptors, _, _ = socket.recv_fds(self._end, MAX_BYTES, MAX_DESCRIPTORS)
        except ConnectionResetError as error:
            raise ChannelClosed(str(error)) from error
        if not data:
            raise ChannelClosed("end of stream")
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        return decode(data), descriptors

    def close(self) -> None:
        """Close this end; the other side sees it at once."""
        self._end.close()


def channel_pair() -> tuple[Channel, socket.socket]:
    """Make the launcher's end, and the nursery's end as a socket to hand over."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", FULL_S, 0))
    return Channel(ours), theirs
