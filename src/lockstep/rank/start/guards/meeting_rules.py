"""How a script's own `init_process_group` fits the ranks that lockstep has started: a pure decision with its sentence.

What would block for minutes (more ranks than were started, two ranks with one number) is refused before anything waits.
What can simply be made to work is made to: all ranks of a run are on this machine, so a meeting at any address, port or
file goes through the run's own store, in shared memory where there is a compiled part. There no port is busy, nothing
listens, and no file has the addresses of an earlier meeting (torch's FileStore had them in the second of two meetings:
"connection refused" after 3 s).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlparse

from lockstep.errors import UsageError

GLOO = 'Use init_process_group("gloo").'


class Way(StrEnum):
    """Through which store the ranks meet."""

    TORCH = "torch"
    """As torch does it, with the arguments as they are."""
    RUN = "run"
    """The run's store, under a name derived from the address."""


@dataclass(frozen=True)
class Asked:
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
    """What lockstep has started, and what this torch can do."""

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


def judge_meeting(asked: Asked, launched: Launched, now: Surroundings) -> Way:
    """The way to meet.

    Raises:
        UsageError: for what would block or cannot be.
    """
    _check_backend(asked, launched)
    if asked.has_store:
        return Way.TORCH
    method = asked.init_method or "env://"
    scheme = urlparse(method).scheme
    if scheme in ("tcp", "file") and (
        asked.rank < 0 or asked.world_size < 0 or (scheme == "tcp" and not _port(method))
    ):
        return Way.TORCH  # which says what is missing
    if asked.changed:
        raise UsageError(
            f"The script has set {asked.changed}, but this is rank {launched.rank} of {launched.world_size}.",
            "Leave RANK and WORLD_SIZE as they were; a smaller group takes init_process_group(rank=..., world_size=...).",
        )
    moved = scheme == "env" and now.address != launched.address
    _check_numbers(asked, launched, shared=scheme == "env" and not moved)
    if scheme in ("tcp", "file") or moved or (scheme == "env" and (now.earlier or launched.shares_memory)):
        return Way.RUN
    return Way.TORCH


def _check_backend(asked: Asked, launched: Launched) -> None:
    names = (asked.backend or "").lower()
    wanted = {part.partition(":")[2] or part for part in names.split(",")}
    if "nccl" not in wanted:
        return
    if not launched.has_nccl:
        raise UsageError("This torch has no NCCL.", GLOO)
    if names != "nccl" and "gloo" in wanted:
        return  # the CPU's part works without a GPU
    if launched.gpus == 0:
        raise UsageError("NCCL needs a GPU for each rank, and torch sees none here.", GLOO)
    if launched.local_world_size > launched.gpus:
        raise UsageError(
            f"NCCL needs a GPU for each rank, but {launched.local_world_size} ranks were started and torch sees "
            f"{launched.gpus}.",
            f'Start {launched.gpus}, or use init_process_group("gloo").',
        )


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


def _check_numbers(asked: Asked, launched: Launched, shared: bool) -> None:
    """Refuse ranks that cannot meet; a smaller group may be meant, unless the address is `shared` with all ranks."""
    world_size = asked.world_size if asked.world_size >= 0 else launched.world_size
    if world_size != launched.world_size and (
        world_size > launched.world_size or shared or not 0 <= asked.rank < world_size
    ):
        raise UsageError(
            f"init_process_group(world_size={world_size}) waits for {_ranks(world_size)}, but {launched.world_size} "
            f"{'was' if launched.world_size == 1 else 'were'} started.",
            f"Start {world_size}, or leave world_size out.",
        )
    if world_size != launched.world_size or asked.rank in (-1, launched.rank):
        return
    if asked.rank == launched.local_rank:
        raise UsageError(
            f"init_process_group(rank={asked.rank}) got LOCAL_RANK, which is numbered per node; this is rank "
            f"{launched.rank}.",
            'Pass rank=int(os.environ["RANK"]), or leave rank out.',
        )
    raise UsageError(
        f"init_process_group(rank={asked.rank}) was called in rank {launched.rank}, so the ranks would wait for each "
        "other forever.",
        'Pass rank=int(os.environ["RANK"]), or leave rank out.',
    )


def _ranks(count: int) -> str:
    return f"{count} rank{'s' if count != 1 else ''}"


def alone_line(rank: int, world_size: int) -> str:
    """Say that a rank of several is alone in its group: what it trains there, it trains apart from the others."""
    return f"rank {rank} of {world_size} makes a group of one rank, so what it trains is apart from the others."
