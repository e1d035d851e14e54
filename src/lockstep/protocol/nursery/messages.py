"""What the launcher and the nursery tell each other. A message is a value; on the wire, JSON with its class's name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

from lockstep.errors import LockstepError, WorldError
from lockstep.machine.processes import address_limit
from lockstep.protocol.import_failure import failed_import


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
        return WorldError(
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
