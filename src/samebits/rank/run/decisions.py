"""What `samebits.init` decides: the command line beats the script's arguments, and these beat a state's and the defaults.

read_environment, check_*    what was given, or one sentence
decide                       Wanted -> Decided; pins the device
write_decisions              for the launcher's second start line and the record, once a loader is prepared
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from samebits.errors import UsageError, mistake_text
from samebits.machine.visible import write_error
from samebits.notices import say
from samebits.protocol.arithmetic import Arithmetic, arithmetic_text, why_not_exact
from samebits.protocol.environment import RankEnvironment, RankSettings, decode
from samebits.protocol.late_settings import ranks_per_gpu, say_too_late
from samebits.protocol.layout.cut import Cut
from samebits.protocol.layout.mesh import (
    DATA_PARALLEL,
    MOST_LANES,
    Form,
    Mesh,
    check_over_nodes,
    check_shrinks,
    choose_mesh,
)
from samebits.protocol.saving import Saving, parse_checks
from samebits.protocol.tasks.innermost import innermost
from samebits.rank.checkpoint.store.store import Store
from samebits.rank.init.device import explain_cpu, pin_device
from samebits.rank.init.numerics import fingerprint, flags
from samebits.rank.init.task_store import cores_of, undo_binding
from samebits.rank.portable.process import be_portable, say_held_for_nothing
from samebits.rank.position.metrics import keep
from samebits.rank.position.run_state import Config, RunState


def read_environment() -> RankEnvironment:
    """Who this rank is and what the command line said, from the environment; a task of srun or mpirun gets all its cores back."""
    with in_a_sentence():
        environment = decode(os.environ)
    if environment.task is not None:
        undo_binding(os.environ)
    return environment


@contextmanager
def in_a_sentence() -> Iterator[None]:
    """A mistake in how several tasks were started is said by each in a sentence, not by N tracebacks; exit code 2."""
    try:
        yield
    except UsageError as error:
        if innermost(os.environ) is None:
            raise
        write_error(mistake_text(error.problem, error.fix))
        raise SystemExit(2) from error


def check_steps(environment: RankEnvironment, said: str | None) -> int | None:
    """After how many steps ranks compare; None if nobody says."""
    given = environment.settings.check_every if environment.settings is not None else ""
    mine = parse_checks(said) if said is not None else None
    return parse_checks(given) if given else mine


@dataclass(frozen=True)
class Wanted:
    """The script's arguments."""

    form: Form
    lanes: int | None
    device: str | None
    threads: int | None
    seed: int
    said: Arithmetic


@dataclass(frozen=True)
class Decided:
    """What arguments, command line and defaults came to."""

    mesh: Mesh
    num_lanes: int
    device: torch.device
    threads: int
    seed: int
    arithmetic: Arithmetic
    lanes_named: bool
    """Whether somebody named the number of lanes, or the state that is resumed."""


def decide(environment: RankEnvironment, wanted: Wanted, saving: Saving | None) -> Decided:
    """Put the command line over the script's arguments, and these over the defaults; pin the device, or hold the CPU's kernels."""
    settings, position = environment.settings, environment.position
    arithmetic = (settings.arithmetic.over(wanted.said) if settings else wanted.said).decided()
    form = settings.form.over(wanted.form) if settings else wanted.form
    if settings is not None and settings.shrinks:
        check_shrinks(form)
    if position.local_world_size != position.world_size:
        check_over_nodes(form)
    arranged = choose_mesh(form, position.world_size)
    is_portable = arithmetic.numerics == "portable"
    if is_portable and wanted.threads is None:
        # Threads change bits, and the usual number depends on the machine's cores.
        wanted = replace(wanted, threads=1)
    num_lanes, threads, lanes_named = _lanes_and_threads(environment, wanted, arranged, saving)
    arranged.check_lanes(num_lanes)
    device = wanted_device(settings, wanted.device)
    if is_portable:
        device = _cpu(device)
        be_portable(threads, is_launched=settings is not None, checks=position.local_rank == 0)
    elif position.rank == 0:
        say_held_for_nothing()
    pinned = pin_device(device, position, ranks_per_gpu(os.environ))
    if device is None and pinned.type == "cpu":
        explain_cpu(os.environ, position)
    if settings is not None and pinned.type != settings.device and position.rank == 0:
        say(f'ranks compute on {pinned.type}, as the script says (device="{pinned.type}").')
    say_too_late(os.environ, rank=position.rank, on_gpu=pinned.type == "cuda")
    arranged.check_device(pinned.type)
    arranged.check_nodes(position.local_world_size)
    return Decided(arranged, num_lanes, pinned, threads, wanted.seed, arithmetic, lanes_named)


def wanted_device(settings: RankSettings | None, said: str | None) -> str | None:
    """What the command line names, or the script (`said`), or the launcher has chosen; None where nobody says."""
    if settings is None or not (settings.device_given or said is None):
        return said
    return settings.device


def _cpu(device: str | None) -> str:
    """Raise `UsageError` for a device that is no CPU."""
    if device not in (None, "auto", "cpu"):
        raise UsageError(
            f'numerics="portable" is about CPUs, and the device is {device}.',
            'Use device="cpu", or numerics="exact": GPUs of one kind have the same bits.',
        )
    return "cpu"


def _lanes_and_threads(
    environment: RankEnvironment, wanted: Wanted, mesh: Mesh, saving: Saving | None
) -> tuple[int, int, bool]:
    """What somebody named; else what the state has that the run resumes from; else the defaults. And whether lanes are no default."""
    settings = environment.settings
    lanes, threads = (settings.lanes if settings else None) or wanted.lanes, wanted.threads
    if settings is not None and (settings.threads_given or (threads is None and not settings.cores)):
        threads = settings.threads
    asks = saving is not None and not (lanes and threads)
    name, facts = Store(Path(saving.folder), saving.kept).newest_facts() if saving is not None and asks else ("", {})
    # The state may have been edited: a number that this run cannot have does not count.
    kept_lanes = lanes or _between(mesh.num_ranks, facts.get("lanes"), MOST_LANES)
    kept_threads = threads or _between(1, facts.get("threads"), len(os.sched_getaffinity(0)))
    num_lanes = kept_lanes or mesh.default_lanes()
    num_threads = kept_threads or _default_threads(environment, mesh, num_lanes)
    usual = lanes or mesh.default_lanes()
    is_usual = (num_lanes, num_threads) == (usual, threads or _default_threads(environment, mesh, usual))
    if not is_usual and environment.position.rank == 0 and not (settings and settings.restart.number):
        many = f"{num_lanes} lane{'s' * (num_lanes > 1)} and {num_threads} thread{'s' * (num_threads > 1)} per rank"
        say(f"{many}, as in {name}, from which the run resumes; lanes= and threads= change that, and the bits.")
    return num_lanes, num_threads, bool(kept_lanes)


def _between(least: int, value: object, most: int) -> int | None:
    """A state's number, where it is one that this run can have."""
    return value if isinstance(value, int) and least <= value <= most else None


def _default_threads(environment: RankEnvironment, mesh: Mesh, num_lanes: int) -> int:
    settings, here, bound = environment.settings, environment.position.local_world_size, len(os.sched_getaffinity(0))
    if settings is None:
        cores = bound if environment.task is None else cores_of(environment.task, os.environ)
        return min(bound, mesh.default_threads(cores, num_lanes, here))
    if mesh.strategy not in DATA_PARALLEL:
        return settings.threads
    return mesh.default_threads(settings.cores, num_lanes, max(settings.seat.sizes) if settings.seat else here)


def check_arguments(seed: Any, lanes: Any, threads: Any, **words: Any) -> None:
    """Raise `UsageError` for what a caller without a type checker may pass."""
    try:
        operator.index(seed)
    except TypeError:
        raise UsageError(f"`seed` must be a whole number, but is {seed!r}.", "Pass seed=0, or leave it out.") from None
    for name, value in (("lanes", lanes), ("threads", threads)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise _wrong(name, "a whole number of at least 1", value)
    if lanes is not None and lanes > MOST_LANES:
        raise _wrong("lanes", f"at most {MOST_LANES}", lanes)
    for name, value in words.items():
        if value is not None and not isinstance(value, str):
            raise _wrong(name, "a word", value)


def _wrong(name: str, kind: str, value: object) -> UsageError:
    return UsageError(f"`{name}` must be {kind}, but is {value!r}.", "Leave it out to let samebits choose.")


def write_decisions(run: RunState) -> None:
    """Write the decisions for the launcher's second start line, and for the record."""
    if run.config.environment.position.rank != 0 or not run.loop_state.prepared.loaders:
        return
    loader = run.loop_state.prepared.loaders[0]
    if run.config.folder is None:
        _say_decisions(run, loader.batch_size)
        return
    size, lanes = loader.batch_size, run.config.placement.num_lanes
    decided = {
        "lanes": lanes,
        "batch_size": size,
        "lane_sizes": [] if size is None else Cut(size, lanes).full_sizes(),
        "strategy": str(run.config.mesh),
        "not_exact": _why_not_exact(run.config),
        "replicas": [run.config.mesh.members(replica) for replica in range(run.config.mesh.replicas)],
        "ranks_are_fixed": run.config.mesh.is_named or run.config.mesh.strategy == "dp",
        "even_lanes": run.loop_state.prepared.even_lanes,
        "states": run.components.states.place,
        "seed": run.components.streams.seed,
        "threads": run.config.threads,
        "lanes_named": run.config.lanes_named,
        "lanes_note": _lanes_note(run.config),
        "fingerprint": fingerprint(run.config.device, run.config.threads, run.config.arithmetic.numerics),
        "arithmetic": _arithmetic(run.config, run.components.streams.seed),
    }
    keep(run.config.folder.decided, json.dumps(decided), run.components.step_timer)


def _lanes_note(config: Config) -> str:
    """What to add to a number of lanes that nobody named."""
    if config.lanes_named:
        return ""
    if config.environment.position.world_size == 1 < config.placement.num_lanes:
        return " (default; one rank alone is faster with lanes=1: other bits on more ranks)"
    return " (default; lanes= changes it)"


def _why_not_exact(config: Config) -> str:
    return why_not_exact(config.mesh.strategy, config.arithmetic.numerics, config.arithmetic.allow)


def _arithmetic(config: Config, seed: int) -> dict[str, Any]:
    """Precision, numerics and every flag that they set, for decided.json and the line about them."""
    return {
        "precision": config.arithmetic.precision,
        "numerics": config.arithmetic.numerics,
        "allow": list(config.arithmetic.allow),
        "seed": seed,
        "device": config.device.type,
        "flags": flags(),
    }


def _say_decisions(run: RunState, batch_size: int | None) -> None:
    """Say once, without our launcher, what the same bits need elsewhere."""
    if not run.loop_state.notices.decisions:
        run.loop_state.notices.decisions = True
        ranks, lanes = run.components.transport.world_size, run.config.placement.num_lanes
        needed = f"{lanes} lane{'s' * (lanes > 1)}{_lanes_note(run.config)}, {run.config.threads} thread{'s' * (run.config.threads > 1)} each"
        same = "" if _why_not_exact(run.config) else f"same bits elsewhere with {needed}; "
        batch = "global batches of batch_sampler" if batch_size is None else f"global batch {batch_size}"
        say(
            f"{ranks} rank{'s' * (ranks > 1)} on {run.config.device.type}, {batch}, {run.config.mesh}; "
            f"{same}numerics {arithmetic_text(_arithmetic(run.config, run.components.streams.seed))}"
        )
