"""Messages between the launcher and the nursery: one per packet, with file descriptors. On the wire, JSON with the class's name."""

from __future__ import annotations

import json
import os
import re
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from lockstep.errors import EnvironmentFailure, LockstepError, UsageError
from lockstep.machine.processes import address_limit

FIX = "Raise the limit with `ulimit -v unlimited`."
NEEDED = ("torch", "numpy", "safetensors", "cloudpickle", "rich", "click")
"""What pip installs with lockstep, and `pip install --no-deps` does not."""
_MISSING = re.compile(r"ModuleNotFoundError: No module named '(\w+)'\s*\Z")
_FEW_ADDRESSES = re.compile(
    r"failed to map segment|cannot (create|allocate|enable|apply).*(memory|segment|protection)|MemoryError|bad_alloc|errno 12\b",
    re.IGNORECASE,
)
"""What the loader, the C library, C++ and Python say then."""


def is_for_want_of_addresses(error: str, most_addresses: int) -> bool:
    """Whether the limit explains why an import has raised this.

    Args:
        error: its traceback, or the last line of it.
        most_addresses: how many bytes of addresses a process may have; negative: any number.
    """
    return most_addresses >= 0 and _FEW_ADDRESSES.search(error) is not None


def not_installed(package: str) -> UsageError:
    """What to raise where one of `NEEDED` is missing."""
    return UsageError(
        f"{package} is not installed for {sys.executable}.", f"Run {sys.executable} -m pip install {package}."
    )


def failed_import(module: str, error: str, most_addresses: int) -> LockstepError:
    """What to raise for an import that has raised: the missing package or the limit where that explains it, else the import's own
    words.

    Args:
        module: its name.
        error: its traceback.
        most_addresses: see `is_for_want_of_addresses`.
    """
    if is_for_want_of_addresses(error, most_addresses):
        return too_few_addresses(most_addresses)
    missing = _MISSING.search(error)
    if missing is not None and missing[1] in NEEDED:
        return not_installed(missing[1])
    return EnvironmentFailure(f"{module} cannot be imported here:\n{error.rstrip()}")


def too_few_addresses(most_addresses: int) -> UsageError:
    """What to raise where the limit explains why the nursery has not imported torch."""
    process = "The process that imports torch for all ranks"
    return UsageError(f"{process} did not survive that with {most_addresses >> 20} MiB of addresses.", FIX)


def check_import(is_imported: bool, most_addresses: int) -> None:
    """Raise `UsageError` where a limit explains why the process that imports torch has died.

    Args:
        is_imported: whether it had imported it; then the limit does not.
        most_addresses: see `is_for_want_of_addresses`.
    """
    if not is_imported and most_addresses >= 0:
        raise too_few_addresses(most_addresses)


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
    fresh: bool
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

    import_ns: int
    tasks: int
    """Threads of the nursery."""


@dataclass(frozen=True)
class Broken:
    """To the launcher: a module cannot be imported."""

    module: str
    error: str
    """A traceback."""

    @property
    def failure(self) -> LockstepError:
        """What the launcher raises."""
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
    def failure(self) -> LockstepError:
        """What the launcher raises."""
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
    """How many were killed."""


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
_KINDS: dict[str, Callable[..., Message]] = {
    kind.__name__: kind
    for kind in (
        MakeView,
        Spawn,
        StartStore,
        Signal,
        Sweep,
        Ready,
        Broken,
        ViewMade,
        Spawned,
        NotSpawned,
        Exited,
        Signalled,
        Swept,
    )
}


def encode(message: Message) -> bytes:
    """Encode a message for `decode`."""
    return json.dumps([type(message).__name__, asdict(message)]).encode()


def decode(data: bytes) -> Message:
    """The inverse of `encode`."""
    name, fields = json.loads(data)
    return _KINDS[name](**{key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()})


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
