"""Wrap `torch.distributed.init_process_group` and `TCPStore` in a rank, and check what the script asks for.

Installed when torch.distributed is loaded, without importing it. What the rules (`meeting_rules`) let pass reaches
torch as it was given; name, signature and docstring stay. Only the ranks that samebits started have it.
"""

from __future__ import annotations

import functools
import importlib
import os
import socket
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl, urlparse

from samebits.errors import UsageError
from samebits.notices import say
from samebits.protocol.environment import Position, decode
from samebits.protocol.late_settings import ranks_per_gpu, say_too_late
from samebits.protocol.meeting_place import InheritedFile
from samebits.rank.start.guards.wrapping import INIT, CallByName, put_in_place, when_imported

GLOO = 'Use init_process_group("gloo").'


class Way(StrEnum):
    """Through which store the ranks meet."""

    TORCH = "torch"
    """As torch does it, with the arguments as they are."""
    RUN = "run"
    """The run's store, under a name derived from the address."""


@dataclass(frozen=True)
class Requested:
    """The arguments of one `init_process_group`."""

    backend: str | None = None
    init_method: str | None = None
    world_size: int = -1
    rank: int = -1
    has_store: bool = False
    changed: str = ""
    """What of RANK and WORLD_SIZE the script has changed, if the call reads it there: "WORLD_SIZE=1"."""


@dataclass(frozen=True)
class Launched:
    """What samebits has started, and what this torch can do."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    address: str
    """`host:port` of the run's store, as MASTER_ADDR and MASTER_PORT were set at the start."""
    has_nccl: bool = True
    gpus: int = 0
    shares_memory: bool = False
    """Whether the run's store is there already, in shared memory or over nodes; if not, the first plain `env://` is torch's own."""


@dataclass(frozen=True)
class Surroundings:
    """What the call finds."""

    address: str
    """`host:port` by MASTER_ADDR and MASTER_PORT now; a part is empty when its variable is not set."""
    earlier: int = 0
    """How often this process has met the others this way before."""


def judge_meeting(requested: Requested, launched: Launched, now: Surroundings) -> Way:
    """The way to meet.

    Raises:
        UsageError: for what would block or cannot be.
    """
    _check_backend(requested, launched)
    if requested.has_store:
        return Way.TORCH
    method = requested.init_method or "env://"
    scheme = urlparse(method).scheme
    if scheme in ("tcp", "file") and (
        requested.rank < 0 or requested.world_size < 0 or (scheme == "tcp" and not _port(method))
    ):
        # Torch says what is missing.
        return Way.TORCH
    if requested.changed:
        raise UsageError(
            f"The script has set {requested.changed}, but this is rank {launched.rank} of {launched.world_size}.",
            "Leave RANK and WORLD_SIZE as they were; a smaller group takes init_process_group(rank=..., world_size=...).",
        )
    moved = scheme == "env" and now.address != launched.address
    _check_numbers(requested, launched, shared=scheme == "env" and not moved)
    if scheme in ("tcp", "file") or moved or (scheme == "env" and (now.earlier or launched.shares_memory)):
        return Way.RUN
    return Way.TORCH


def _check_backend(requested: Requested, launched: Launched) -> None:
    names = (requested.backend or "").lower()
    wanted = {part.partition(":")[2] or part for part in names.split(",")}
    if "nccl" not in wanted:
        return
    if not launched.has_nccl:
        raise UsageError("This torch has no NCCL.", GLOO)
    if names != "nccl" and "gloo" in wanted:
        # The CPU's part works without a GPU.
        return
    if launched.gpus == 0:
        raise UsageError("NCCL needs a GPU for each rank, and torch sees none here.", GLOO)
    if launched.local_world_size > launched.gpus:
        raise UsageError(
            f"NCCL needs a GPU for each rank, but {launched.local_world_size} ranks were started and torch sees "
            f"{launched.gpus}.",
            f'Start {launched.gpus}, or use init_process_group("gloo").',
        )


def backend_of_shared_gpus(backend: str | None, launched: Launched, per_gpu: int) -> str | None:
    """Gloo in place of NCCL where ranks may share a GPU and do: NCCL refuses that, Gloo goes through host memory."""
    shares = launched.gpus < launched.local_world_size <= launched.gpus * per_gpu
    return "gloo" if shares and (backend or "").lower() == "nccl" else backend


def meeting_name(init_method: str | None, world_size: int, moved_to: str = "") -> str:
    """A name that ranks share when they mean the same place: the port of tcp://, the path of file://, else the scheme.

    Args:
        init_method: the script's.
        world_size: how many meet; a rank that was alone there before is not ahead of the others.
        moved_to: `host:port` to which the script has moved env://; empty when it has not.
    """
    parts = urlparse(init_method or "env://")
    if parts.scheme == "env" and moved_to:
        parts = urlparse(f"tcp://{moved_to}")
        init_method = parts.geturl()
    if parts.scheme == "tcp":
        return f"tcp {_port(init_method or '')}, {world_size} ranks"
    return f"{parts.scheme} {parts.path}, {world_size} ranks"


def _port(method: str) -> int | None:
    try:
        return urlparse(method).port
    except ValueError:
        return None


def _check_numbers(requested: Requested, launched: Launched, shared: bool) -> None:
    """Refuse ranks that cannot meet; a smaller group may be meant, unless the address is `shared` with all ranks."""
    world_size = requested.world_size if requested.world_size >= 0 else launched.world_size
    if world_size != launched.world_size and (
        world_size > launched.world_size or shared or not 0 <= requested.rank < world_size
    ):
        raise UsageError(
            f"init_process_group(world_size={world_size}) waits for {_ranks(world_size)}, but {launched.world_size} "
            f"{'was' if launched.world_size == 1 else 'were'} started.",
            f"Start {world_size}, or leave world_size out.",
        )
    if world_size != launched.world_size or requested.rank in (-1, launched.rank):
        return
    if requested.rank == launched.local_rank:
        raise UsageError(
            f"init_process_group(rank={requested.rank}) got LOCAL_RANK, which is numbered per node; this is rank "
            f"{launched.rank}.",
            'Pass rank=int(os.environ["RANK"]), or leave rank out.',
        )
    raise UsageError(
        f"init_process_group(rank={requested.rank}) was called in rank {launched.rank}, so the ranks would wait for each "
        "other forever.",
        'Pass rank=int(os.environ["RANK"]), or leave rank out.',
    )


def _ranks(count: int) -> str:
    return f"{count} rank{'s' if count != 1 else ''}"


def alone_line(rank: int, world_size: int) -> str:
    """Say that a rank of several is alone in its group: what it trains there, it trains apart from the others."""
    return f"rank {rank} of {world_size} makes a group of one rank, so what it trains is apart from the others."


MARK = "__samebits__"
"""Set on what wraps torch's functions, so that they are wrapped once."""


@dataclass(frozen=True)
class Launcher:
    """What a rank can do about the launcher."""

    met: Callable[[], None]
    """Say that the script's ranks have met."""
    wants_store: Callable[[], None]
    """Say that the script wants a store at the run's port."""
    port: InheritedFile
    """The run's port; see `samebits.protocol.meeting_place`."""

    def serve(self) -> None:
        """Let a `TCPStore` answer at the run's port from now on."""
        if self.port.is_open():
            with socket.socket(fileno=os.dup(self.port.number)) as listener, suppress(OSError):
                # Listen at once: a client that comes before the server then waits for it.
                listener.listen()
            self.wants_store()


def guard_meetings(variables: Mapping[str, str], launcher: Launcher) -> None:
    """Install the guard, now or when the script imports torch.distributed, with the variables as the launcher set them."""
    guard = _Guard(dict(variables), launcher)
    when_imported("torch.distributed.distributed_c10d", guard.install)


class _Guard:
    def __init__(self, variables: dict[str, str], launcher: Launcher) -> None:
        self._launcher = launcher
        environment = decode(variables)
        self._position = environment.position
        settings = environment.settings
        self._seat = settings.seat if settings is not None else None
        self._on_gpu = settings is not None and settings.device == "cuda"
        self._host, self._port = variables["MASTER_ADDR"], int(variables["MASTER_PORT"])
        self._meetings: Counter[str] = Counter()
        self._process = os.getpid()
        self._has_said_alone = False

    def install(self, c10d: ModuleType) -> None:
        """Put the guard in place of torch's functions; a second call changes nothing."""
        original = c10d.init_process_group
        if hasattr(original, MARK):
            return
        guarded = self._guarded(original, c10d)
        setattr(guarded, MARK, True)
        put_in_place(c10d, "init_process_group", guarded)
        self._guard_store(sys.modules["torch.distributed"].TCPStore)

    def _guarded(self, original: Callable[..., Any], c10d: ModuleType) -> Callable[..., Any]:
        call = CallByName(original, INIT)

        @functools.wraps(original)
        def init_process_group(*args: Any, **kwargs: Any) -> Any:
            try:
                given = call.look(args, kwargs)
                requested = _requested(given, self._position)
            except (TypeError, ValueError):
                # Torch says what is wrong.
                return original(*args, **kwargs)
            # A process that the rank has forked is no rank itself.
            if c10d.is_initialized() or given.get("_ranks") or os.getpid() != self._process:
                return original(*args, **kwargs)
            launched = self._launched(c10d)
            backend = backend_of_shared_gpus(requested.backend, launched, ranks_per_gpu(os.environ))
            if backend != requested.backend:
                requested = replace(requested, backend=backend)
                if launched.rank == 0:
                    say("ranks that share a GPU exchange over Gloo: NCCL takes one rank for each.")
                changes = {"backend": backend, "device_id": None, "pg_options": None}
                args, kwargs = call.change(args, kwargs, {name: changes[name] for name in changes if name in given})
            say_too_late(os.environ, rank=self._position.rank, on_gpu=self._on_gpu)
            address = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
            moved_to = address if address != f"{self._host}:{self._port}" else ""
            key = meeting_name(requested.init_method, self._world_size(requested), moved_to)
            way = judge_meeting(requested, launched, Surroundings(address, self._meetings[key]))
            if self._world_size(requested) == 1 < self._position.world_size and not self._has_said_alone:
                self._has_said_alone = True
                say(alone_line(self._position.rank, self._position.world_size))
            if not requested.has_store:
                self._meetings[key] += 1
            if way is Way.TORCH:
                return original(*args, **kwargs)
            args, kwargs = call.change(args, kwargs, self._through_the_run(c10d, given, requested, key))
            original(*args, **kwargs)
            if self._world_size(requested) > 1:
                self._launcher.met()
            return None

        return init_process_group

    def _launched(self, c10d: ModuleType) -> Launched:
        torch = sys.modules["torch"]
        position = self._position
        return Launched(
            rank=position.rank,
            local_rank=position.local_rank,
            world_size=position.world_size,
            local_world_size=position.local_world_size,
            address=f"{self._host}:{self._port}",
            has_nccl=c10d.is_nccl_available(),
            gpus=torch.cuda.device_count(),
            shares_memory=self._seat is not None or _memory_shared().has_inherited(),
        )

    def _through_the_run(
        self, c10d: ModuleType, given: Mapping[str, Any], requested: Requested, key: str
    ) -> dict[str, Any]:
        """The same meeting at the run's store; each has its own name there, because old keys stay."""
        timeout = given.get("timeout") or c10d.default_pg_timeout
        if self._seat is not None:
            store = importlib.import_module("samebits.rank.transport.local.nodes_store").store_of_all_nodes(
                self._seat, timeout
            )
        else:
            store = _memory_shared().inherited_store() or sys.modules["torch.distributed"].TCPStore(
                self._host, self._port, is_master=False
            )
        store.set_timeout(timeout)
        position = self._position
        return {
            "init_method": None,
            "store": c10d.PrefixStore(f"samebits {key}, {self._meetings[key]}", store),
            "rank": requested.rank if requested.rank >= 0 else position.rank,
            "world_size": self._world_size(requested),
        }

    def _world_size(self, requested: Requested) -> int:
        return requested.world_size if requested.world_size >= 0 else self._position.world_size

    def _guard_store(self, store: Any) -> None:
        """Make a TCPStore at the run's address a client of the run's store."""
        original = store.__init__
        own_port, serve = self._port, self._launcher.serve

        @functools.wraps(original)
        def __init__(  # noqa: N807 - it takes that place
            self: Any,
            host_name: str,
            port: int,
            world_size: Any = None,
            is_master: bool = False,
            *rest: Any,
            **more: Any,
        ) -> None:
            if port == own_port and more.get("master_listen_fd") is None:
                is_master = False
                serve()
            original(self, host_name, port, world_size, is_master, *rest, **more)

        store.__init__ = __init__


def _memory_shared() -> Any:
    """The module that has the store in shared memory; by name, because it belongs inside a rank and needs torch."""
    return importlib.import_module("samebits.rank.transport.local.shared_store")


def _requested(given: Mapping[str, Any], position: Position) -> Requested:
    backend = given.get("backend")
    method = given.get("init_method")
    parts = urlparse("env://" if method is None else str(method))
    query = dict(parse_qsl(parts.query))
    changed = []
    # As torch reads them; the script may have changed them.
    if parts.scheme == "env" and given.get("store") is None:
        for name, variable, own in (("rank", "RANK", position.rank), ("world_size", "WORLD_SIZE", position.world_size)):
            if _first(given.get(name), query.get(name)) < 0:
                query[name] = os.environ.get(variable, "-1")
                changed += [f"{variable}={query[name]}"] if int(query[name]) not in (-1, own) else []
    return Requested(
        backend=None if backend is None else str(backend),
        init_method=None if method is None else str(method),
        world_size=_first(given.get("world_size"), query.get("world_size")),
        rank=_first(given.get("rank"), query.get("rank")),
        has_store=given.get("store") is not None,
        changed=" and ".join(changed),
    )


def _first(given: Any, default: str | None) -> int:
    """The call's value, else the default; -1 where there is neither."""
    number = int(given) if given is not None else -1
    return number if number >= 0 else int(default or -1)
