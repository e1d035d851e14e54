"""The environment of a rank: written by the launcher, read by the rank, encoded and decoded here and nowhere else.

Two layers. torchrun's variables (RANK, WORLD_SIZE, MASTER_ADDR, ...) make plain DDP, Accelerate and Fabric scripts run
unchanged. samebits's own travel as one JSON object in SAMEBITS_RANK, so that nothing can be half set.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samebits.errors import UsageError
from samebits.protocol.arithmetic import Arithmetic
from samebits.protocol.branch import Course
from samebits.protocol.layout.mesh import Form
from samebits.protocol.meeting_place import MeetingPlace, Restart, Seat
from samebits.protocol.records import plain, restored
from samebits.protocol.saving import Saving, SnapshotPlace
from samebits.protocol.tasks.innermost import check_around, innermost
from samebits.protocol.tasks.task import Task

OWN = "SAMEBITS_RANK"
"""The variable that holds samebits's own settings of a rank."""

PLACE = "SAMEBITS_RANK_MEETING"
"""The variable that holds what this rank inherited to meet the others."""

MEASURE = "measure"
"""In `RankSettings.evidence`: what `bench` wants measured (see `samebits.rank.recording.meter`); then nothing else is."""

FOREIGN_LAUNCHERS = (
    ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
    ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("mpirun", "PMI_RANK", "PMI_SIZE"),
)
"""(name, variable of the rank, variable of the size) of launchers whose other variables are missing, as far as known."""


@dataclass(frozen=True)
class Position:
    """Where a rank is, in torch.distributed's words."""

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    node: int = 0
    num_nodes: int = 1


@dataclass(frozen=True)
class RankSettings:
    """What `samebits run` (or `verify`) decided for the run. None: the script decides."""

    run_folder: Path
    threads: int
    """Per rank."""
    threads_given: bool = True
    """Whether `threads` was given on the command line; otherwise the script's `init(threads=...)` wins."""
    cores: int = 0
    """Of a node, where nobody named the threads: a data-parallel run divides them by its lanes. 0: somebody named them."""
    lanes: int | None = None
    device: str = "cpu"
    """"cpu" or "cuda": the kind of device that this rank pins; the index is the local rank."""
    device_given: bool = True
    """Whether `device` was named on the command line; otherwise the script's `init(device=...)` wins."""
    backend: str = ""
    """The backend of torch.distributed from the command line; empty: the script's own."""
    form: Form = field(default_factory=Form)
    """How the command line lays the model on ranks."""
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    """Precision and numerics from the command line."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    """What `verify` or `bench` wants recorded (`samebits.rank.recording.recorder` and `meter`); empty for a normal run."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """With `run --record`: what the command knows of the run, its script, arguments and commit; empty without."""
    saving: Saving | None = None
    """Where and when the state is saved by itself, from the command line."""
    check_every: str = ""
    """After how many steps ranks compare what all of them hold, from the command line; empty: the script decides."""
    resume_nonfinite: bool = False
    """Whether the run resumes from the newest state even if that is not finite."""
    restart: Restart = field(default_factory=Restart)
    """Which start of the run's ranks this is."""
    snapshots: SnapshotPlace | None = None
    """Where the run keeps its newest state in memory; None where it keeps none."""
    recover: str = "auto"
    """From where all ranks start again: "auto" the newest state, "exact" no state that lacks what the script keeps itself."""
    shrinks: bool = False
    """Whether the launcher starts all ranks again with one less when one dies."""
    trace_steps: int = 0
    """How many steps of this start the ranks record for `--trace`."""
    seat: Seat | None = None
    """This rank's node among several; None on one node."""
    course: Course = field(default_factory=Course)
    """With which state the run begins, and which steps it passes over."""


@dataclass(frozen=True)
class RankEnvironment:
    """All that a rank learns from its environment before its script begins."""

    position: Position
    settings: RankSettings | None
    """None when a launcher other than ours started the rank, or none did."""
    task: Task | None = None
    """The task of srun or mpirun that this rank is, where no nearer launcher made it one."""


def encode(environment: RankEnvironment, master_port: int, run_id: str) -> dict[str, str]:
    """The variables to set for a rank: torchrun's whole contract, and ours.

    Args:
        environment: the rank's position and settings; settings must not be None.
        master_port: the port on 127.0.0.1 that is kept for a store of this run; on several nodes it answers there.
        run_id: the run's name.
    """
    position, settings = environment.position, environment.settings
    assert settings is not None
    own = {**plain(settings), "position": _numbers(position)}
    variables = {
        OWN: json.dumps(own),
        "RANK": position.rank,
        "LOCAL_RANK": position.local_rank,
        "WORLD_SIZE": position.world_size,
        "LOCAL_WORLD_SIZE": position.local_world_size,
        "GROUP_RANK": position.node,
        "GROUP_WORLD_SIZE": position.num_nodes,
        "ROLE_RANK": position.rank,
        "ROLE_WORLD_SIZE": position.world_size,
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": master_port,
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": settings.restart.number,
        "TORCHELASTIC_MAX_RESTARTS": settings.restart.most,
        # on one node nothing serves before a script wants it, and then rank 0 may
        "TORCHELASTIC_USE_AGENT_STORE": str(settings.seat is not None),
        "TORCHELASTIC_ERROR_FILE": settings.run_folder / "failures" / f"torchelastic-{position.rank:05d}.json",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": 1,
    }
    return {name: str(value) for name, value in variables.items()}


def encode_place(place: MeetingPlace) -> dict[str, str]:
    """The variable with a rank's descriptors; only the rank's own process can know their numbers."""
    return {PLACE: json.dumps(plain(place))}


def decode_place(variables: Mapping[str, str]) -> MeetingPlace | None:
    """What this rank inherited; None when another launcher started it, or none did."""
    if PLACE not in variables:
        return None
    try:
        return restored(MeetingPlace, json.loads(variables[PLACE]))
    except (ValueError, RecursionError):
        raise _not_ours(PLACE) from None


def decode(variables: Mapping[str, str]) -> RankEnvironment:
    """The environment of this process: ours, torchrun's, srun's or mpirun's, or that of a process that runs alone.

    Raises:
        UsageError: when a launcher started several tasks but its variables do not say which one this is, or when
            they contradict each other, or what `samebits run` has set. A launched script never trains alone in silence.
    """
    position = _position(variables)
    if OWN in variables:
        return RankEnvironment(position, _settings(variables[OWN], position))
    task = innermost(variables)
    if task is not None:
        check_around(task, variables)
    if position != Position() or {"RANK", "TORCHELASTIC_RUN_ID"} <= variables.keys():
        return RankEnvironment(position, None)
    if task is None:
        _refuse_foreign_launchers(variables)
        return RankEnvironment(position, None)
    return RankEnvironment(Position(task.rank, task.local_rank, task.size, task.local_size), None, task)


def _numbers(position: Position) -> list[int]:
    return [position.rank, position.local_rank, position.world_size, position.local_world_size]


def _settings(text: str, position: Position) -> RankSettings:
    """What the launcher set for the rank, which must still be at this position."""
    try:
        own = json.loads(text)
        was = own.pop("position")
        settings = restored(RankSettings, own)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise _not_ours(OWN) from None
    if was != _numbers(position):
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        changed = [
            f"{name}={now}" for name, now, before in zip(names, _numbers(position), was, strict=True) if now != before
        ]
        raise UsageError(
            f"The script has set {' and '.join(changed)}, but this is rank {was[0]} of {was[2]}.",
            "Leave what `samebits run` has set as it was, or start as many ranks as you want with -n.",
        )
    return settings


def _not_ours(name: str) -> UsageError:
    return UsageError(f"{name} is not what `samebits run` of this version sets for its ranks.", "Unset it.")


def _position(variables: Mapping[str, str]) -> Position:
    if "RANK" not in variables and "WORLD_SIZE" not in variables:
        return Position()
    for present, missing in (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")):
        if missing not in variables:
            raise UsageError(
                f"{present}={variables[present]} is set but {missing} is not, so it is unclear whether this process "
                "is one of several.",
                "Set both, unset both, or start with `samebits run -n N SCRIPT`.",
            )
    rank, world_size = _number(variables, "RANK"), _number(variables, "WORLD_SIZE")
    if world_size < 1:
        raise UsageError(f"WORLD_SIZE must be at least 1, but is {world_size}.", "Set it to one, or unset it.")
    if not 0 <= rank < world_size:
        raise UsageError(
            f"RANK={rank} does not fit WORLD_SIZE={world_size}: ranks count from 0 to {world_size - 1}.",
            f"Set both, unset both, or start with `samebits run -n {world_size} SCRIPT`.",
        )
    local_world_size = _number(variables, "LOCAL_WORLD_SIZE", world_size)
    if not 1 <= local_world_size <= world_size:
        raise UsageError(
            f"LOCAL_WORLD_SIZE={local_world_size} does not fit WORLD_SIZE={world_size}.", "Set both, or unset both."
        )
    local_rank = _number(variables, "LOCAL_RANK", rank % local_world_size)
    most = local_world_size if "LOCAL_WORLD_SIZE" in variables else max(local_world_size, local_rank + 1)
    if not 0 <= local_rank < most:
        raise UsageError(
            f"LOCAL_RANK={local_rank} does not fit {local_world_size} rank{'s' * (local_world_size != 1)} on this "
            "node.",
            f"Set it to a number from 0 to {local_world_size - 1}, or unset it.",
        )
    return Position(rank, local_rank, world_size, local_world_size)


def check_address(variables: Mapping[str, str]) -> None:
    """Raise `UsageError` where another launcher does not say at which address its ranks meet."""
    if not variables.get("MASTER_ADDR"):
        raise UsageError(
            "RANK and WORLD_SIZE are set but MASTER_ADDR is not, so the ranks do not know where to meet.",
            "Set MASTER_ADDR and MASTER_PORT, unset all four, or start with `samebits run -n N SCRIPT`.",
        )
    port = _number(variables, "MASTER_PORT")
    if not 0 <= port < 1 << 16:
        raise UsageError(f"MASTER_PORT must be a port from 0 to 65535, but is {port}.", "Set it to a free one.")


def _number(variables: Mapping[str, str], name: str, default: int | None = None) -> int:
    value = variables.get(name)
    if value is None and default is not None:
        return default
    try:
        return int(value or "")
    except ValueError:
        raise UsageError(f"{name} must be a whole number, but is {value!r}.", "Set it to one, or unset it.") from None


def _refuse_foreign_launchers(variables: Mapping[str, str]) -> None:
    for launcher, rank, size in FOREIGN_LAUNCHERS:
        tasks = variables.get(size, "1")
        if rank in variables and tasks.isdigit() and int(tasks) > 1:
            raise UsageError(
                f"{launcher} started {tasks} tasks, and this one ({rank}={variables[rank]}) would train alone.",
                f"Unset {rank} if it is left over; else set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or use "
                f"`samebits run -n {tasks} SCRIPT`.",
            )


# Where ranks would start ranks of their own: what is refused, with its sentence


def check_spawn(variables: Mapping[str, str]) -> None:
    """Raise `UsageError` where each of several processes would start the ranks of `samebits.spawn`.

    Args:
        variables: of the process that calls it.
    """
    task = innermost(variables)
    if OWN in variables:
        rank, num_nodes = int(variables.get("RANK", "0")), int(variables.get("GROUP_WORLD_SIZE", "1"))
        if num_nodes > 1:
            raise refusal("samebits.spawn", rank, num_nodes)
        raise UsageError(
            f"samebits.spawn was called in rank {rank} of a run, so each rank would start ranks of its own.",
            "Start this script with `python`, not with `samebits run`; or call the function without spawn.",
        )
    if task is not None:
        raise UsageError(
            f"{task.command} started {task.size} tasks {task.where}, and each of them would start ranks of its own with "
            "samebits.spawn.",
            f"Call the function without spawn: `{task.command} -n {task.size} python SCRIPT` makes each task a rank.",
        )


def refusal(call: str, rank: int, num_nodes: int) -> UsageError:
    """The error where a rank of a run on several nodes starts ranks of its own with `call`."""
    return UsageError(
        f"{call} was called in rank {rank} of a run on {num_nodes} nodes, so each rank would start ranks of its own, "
        "which know nothing of the other nodes.",
        "Call the function without spawn: `samebits run -n N` starts N ranks on each node, and each runs the script.",
    )
