"""`lockstep.init`: from the process's environment to a Run."""

from __future__ import annotations

import atexit
import operator
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch

from lockstep.errors import LockstepError, PeerLost, RanksDiffer, UsageError, mistake_text
from lockstep.machine.half_written import compiler_cache, remove_half_written
from lockstep.machine.standard_streams import flush_output, write_error
from lockstep.notices import say
from lockstep.protocol.arithmetic import Arithmetic, allowed_named
from lockstep.protocol.environment import MEASURE, RankEnvironment, decode
from lockstep.protocol.journal import device_words
from lockstep.protocol.journal.failure import describe, write_failure
from lockstep.protocol.journal.spans import spans
from lockstep.protocol.late_settings import ranks_per_gpu, say_too_late
from lockstep.protocol.layout.mesh import DATA_PARALLEL, Form, Mesh, check_over_nodes, check_shrinks, choose_mesh
from lockstep.protocol.layout.placement import place
from lockstep.protocol.layout.stream_key import Domain
from lockstep.protocol.run_folder import RunFolder
from lockstep.protocol.saving import SaidInScript, Saving, let_go, parse_checks
from lockstep.protocol.tasks.innermost import innermost
from lockstep.rank.checkpoint.outlive.last_snapshot import outlive
from lockstep.rank.checkpoint.saving.asked import LauncherAsks, NobodyAsks, SignalAsks
from lockstep.rank.checkpoint.saving.automatic import Automatic
from lockstep.rank.checkpoint.saving.ring import Ring
from lockstep.rank.checkpoint.saving.snapshots import Snapshots
from lockstep.rank.checks.unprepared_optimizers import UnpreparedOptimizers
from lockstep.rank.checks.unreduced_metrics import UnreducedMetrics
from lockstep.rank.checks.written_files import WrittenFiles
from lockstep.rank.init.device import pin_device, tell_why_cpu
from lockstep.rank.init.join import join
from lockstep.rank.init.memory import keep_freed_memory
from lockstep.rank.init.numerics import (
    KeptNumerics,
    device_name,
    refuse_several_devices,
    set_numerics,
    unlike_devices,
    unlike_hashes,
)
from lockstep.rank.init.numerics import allow as allow_operators
from lockstep.rank.init.streams import Streams
from lockstep.rank.init.task_store import cores_of, undo_binding
from lockstep.rank.recording.calm import calm, calm_random_numbers, compile_nothing
from lockstep.rank.recording.lane_watch import LaneWatch
from lockstep.rank.recording.meter import Meter
from lockstep.rank.recording.recorder import Recorder
from lockstep.rank.recording.trace import Trace
from lockstep.rank.run.ending import end, help_with_errors, watch_device
from lockstep.rank.run.loop.replicas import nothing_to_check
from lockstep.rank.run.position.metrics import MetricsFile
from lockstep.rank.run.position.step_timer import StepTimer
from lockstep.rank.run.prepare.overflow import make_precision
from lockstep.rank.run.run import Run
from lockstep.rank.run.run_state import Components, Config, LoopState, RunState
from lockstep.rank.strategy.choice import choose_strategy, devices_for_stages
from lockstep.rank.transport.contract import Transport

_present: list[RunState] = []
"""The run of this process: at most one, because torch.distributed and the random streams belong to the process."""

_numbers = count(1)
"""Of the runs of this process, one after the other: after a restart the script makes them again in this order."""

_is_at_exit = False


def init(
    *,
    seed: int = 0,
    lanes: int | None = None,
    strategy: str | None = None,
    mesh: str | None = None,
    schedule: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    precision: str | int | None = None,
    numerics: str | None = None,
    allow: Sequence[str] = (),
    check_every: str | None = None,
    name: str | None = None,
    save_every: str | None = None,
    keep: int = 3,
    states: str | None = None,
) -> Run:
    """Join the run that this process belongs to; alone, it is a run of one rank. Collective: call it on every rank.

    The command line beats these arguments, and they beat the defaults. A second call in a process (a notebook cell that
    is run again) ends the first run.

    Args:
        seed: every random stream of the run comes from it.
        lanes: by default 4, or one per rank where there are more: 1 to 4 ranks have the same bits. One rank is fastest with lanes=1.
        strategy: "single", "ddp", "zero1", "model_parallel", "pipeline", "dp", "hogwild"; by default "auto" (see 0014).
        mesh: how ranks are arranged when a strategy cuts the model, such as "pipeline=2,ddp=2": two stages with two
            replicas each. The last name is the inner one: such ranks are neighbours, on one node. By default all ranks are stages of one replica. "dp=2" is one rank with two replicas.
        schedule: of a pipeline: "1f1b" (one forward, one backward) or "gpipe" (all forwards first).
        device: "cpu" or "cuda"; by default CUDA where there is a GPU for every rank of the node.
        threads: CPU threads per rank; they change bits. By default cores / lanes: name a number where bits must not change.
        precision: "32", "bf16-mixed" or "16-mixed" (also as Lightning Fabric and Accelerate spell them): in which dtype
            the lanes' forward passes compute, by torch.autocast. "16-mixed" scales the loss too; gradients are unscaled
            after the lanes, and an update whose gradient overflowed is skipped on every rank.
        numerics: "exact" fixes the order of sums and the kernels; "fast" leaves both to the backend, and bits differ.
        allow: operators of torch.ops.aten (`["nll_loss2d"]`) that may compute without a deterministic form under "exact".
        check_every: "50steps" or "off": how often ranks compare the bits of what all hold; by default at most 50 steps.
        name: the run's, for states: they are in lockstep-runs/NAME/states, below the working directory.
        save_every: "500steps", "10min" or "epoch": save the state by itself, between two steps. The same script then goes
            on from the newest state when it starts again, on any number of ranks.
        keep: how many states stay.
        states: a URL ("s3://bucket/runs"): states are copied to URL/NAME, from where another machine continues.

    Raises:
        UsageError: when options and environment contradict each other.
        EnvironmentFailure: when the ranks cannot meet.
    """
    environment = _environment()
    seed, checks = _whole_number(seed), _checks(environment, check_every)
    _check_numbers(lanes, threads)
    _check_words(strategy=strategy, mesh=mesh, schedule=schedule)
    saving = _saving(environment, said := SaidInScript(name, save_every, keep, states))
    if _present:
        finish()
    arithmetic = Arithmetic(None if precision is None else str(precision), numerics, allowed_named(allow))
    wanted = _Wanted(Form(strategy, mesh, schedule), lanes, device, threads, seed, arithmetic)
    run = _assemble(environment, _decide(environment, wanted, saving))
    _save_by_itself(run, saving, said)
    return _present_run(run, checks)


def _environment() -> RankEnvironment:
    with _in_a_sentence():
        environment = decode(os.environ)
    if environment.settings is None:
        help_with_errors()
    if environment.task is not None:
        undo_binding(os.environ)
    return environment


@contextmanager
def _in_a_sentence() -> Iterator[None]:
    """A mistake in how several tasks were started is said by each in a sentence, not by N tracebacks; exit code 2."""
    try:
        yield
    except UsageError as error:
        if innermost(os.environ) is None:
            raise
        write_error(mistake_text(error.problem, error.fix))
        raise SystemExit(2) from error


def _saving(environment: RankEnvironment, said: SaidInScript) -> Saving | None:
    """What script and command line want; `verify` and `bench` are not told by the script."""
    settings = environment.settings
    told = settings.saving if settings is not None else None
    if settings is not None and settings.evidence and told is not None:
        return told
    return said.saving(told, os.environ)


def _save_by_itself(run: RunState, saving: Saving | None, said: SaidInScript) -> None:
    settings = run.config.environment.settings
    is_told = settings is not None and settings.saving is not None
    is_users = run.components.recorder is None and run.components.meter is None
    if saving is not None and (is_users or is_told):  # `verify --interrupt` tells its runs where
        Automatic(run, saving, claims=not is_told, asks=_who_asks(run) if is_users else NobodyAsks())
    if is_users and run.components.transport.rank == 0:
        _tell_of_no_effect(run, said if saving is None else SaidInScript())


def _tell_of_no_effect(run: RunState, said: SaidInScript) -> None:
    """Tell once of what a person asked for in vain."""
    for sentence in filter(None, (said.unused, nothing_to_check(run))):
        say(sentence)


def _checks(environment: RankEnvironment, said: str | None) -> int | None:
    """After how many steps ranks compare; None if nobody says."""
    told = environment.settings.check_every if environment.settings is not None else ""
    mine = parse_checks(said) if said is not None else None
    return parse_checks(told) if told else mine


def _keep_snapshots(run: RunState) -> None:
    """Keep the newest state in memory, where the launcher may start the ranks again."""
    settings = run.config.environment.settings
    if settings is not None and settings.snapshots is not None and not settings.evidence:
        run.loop_state.checkpointing.snapshots = Snapshots(run, settings.snapshots, settings.restart, next(_numbers))


def _who_asks(run: RunState) -> NobodyAsks:
    """Who may ask the run to save and end; where ranks make their steps independently, no step is the same for all."""
    rank, folder = run.components.transport.rank, run.config.folder
    if run.config.mesh.asynchronous:
        return NobodyAsks()
    return SignalAsks(says=rank == 0) if folder is None else LauncherAsks(folder.journal(rank))


def _present_run(run: RunState, checks: int | None) -> Run:
    run.loop_state.checks.asked = checks
    watch_device(run)
    _keep_snapshots(run)
    outlive(run, dict(os.environ))
    _present.append(run)
    atexit.register(_finish_at_exit)
    return Run(run)


@dataclass(frozen=True)
class _Wanted:
    """The script's arguments."""

    form: Form
    lanes: int | None
    device: str | None
    threads: int | None
    seed: int
    said: Arithmetic


@dataclass(frozen=True)
class _Decided:
    """What arguments, command line and defaults came to."""

    mesh: Mesh
    num_lanes: int
    device: torch.device
    threads: int
    seed: int
    arithmetic: Arithmetic
    lanes_named: bool
    """Whether somebody named the number of lanes, or the state that is resumed."""


def _decide(environment: RankEnvironment, wanted: _Wanted, saving: Saving | None) -> _Decided:
    """Put the command line over the script's arguments, and these over the defaults; pin the device."""
    settings, position = environment.settings, environment.position
    arithmetic = (settings.arithmetic.over(wanted.said) if settings else wanted.said).decided()
    form = settings.form.over(wanted.form) if settings else wanted.form
    if settings is not None and settings.shrinks:
        check_shrinks(form)
    if position.local_world_size != position.world_size:
        check_over_nodes(form)
    arranged = choose_mesh(form, position.world_size)
    num_lanes, threads, lanes_named = _lanes_and_threads(environment, wanted, arranged, saving)
    arranged.check_lanes(num_lanes)
    device = settings.device if settings else wanted.device
    pinned = pin_device(device, position, ranks_per_gpu(os.environ))
    if device is None and pinned.type == "cpu":
        tell_why_cpu(os.environ, position)
    say_too_late(os.environ, rank=position.rank, on_gpu=pinned.type == "cuda")
    arranged.check_device(pinned.type)
    arranged.check_nodes(position.local_world_size)
    return _Decided(arranged, num_lanes, pinned, threads, wanted.seed, arithmetic, lanes_named)


def _lanes_and_threads(
    environment: RankEnvironment, wanted: _Wanted, mesh: Mesh, saving: Saving | None
) -> tuple[int, int, bool]:
    """What somebody named; else what the state has that the run resumes from; else the defaults. And whether lanes are no default."""
    settings = environment.settings
    lanes, threads = (settings.lanes if settings else None) or wanted.lanes, wanted.threads
    if settings is not None and (settings.threads_given or (threads is None and not settings.cores)):
        threads = settings.threads
    asks = saving is not None and not (lanes and threads)
    name, facts = Ring(Path(saving.folder), saving.kept).newest_facts() if saving is not None and asks else ("", {})
    kept_lanes = lanes or _between(mesh.num_ranks, facts.get("lanes"), 1 << 16)  # nobody means more
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


def _assemble(environment: RankEnvironment, decided: _Decided) -> RunState:
    """Set the process up and meet the others."""
    mesh, device, threads, seed = decided.mesh, decided.device, decided.threads, decided.seed
    exact = decided.arithmetic.numerics == "exact"
    set_numerics(threads, exact=exact)
    if devices_for_stages(mesh, device):
        refuse_several_devices(decided.arithmetic.allow)
    allow_operators(decided.arithmetic.allow)
    keep_freed_memory()
    precision = make_precision(str(decided.arithmetic.precision), device, environment)
    rank, settings = environment.position.rank, environment.settings
    folder = RunFolder(settings.run_folder) if settings else None
    step_timer = StepTimer(folder.journal(rank) if folder else None)
    spans.profiler = torch.autograd.profiler
    if folder is not None and settings is not None and settings.trace_steps:
        step_timer.take_trace(Trace(folder.traces / f"rank-{rank:05d}.json", rank, settings.trace_steps))
    recorder = _recorder(environment, folder)
    if environment.position.local_rank == 0:  # before any rank of this node can compile
        remove_half_written(compiler_cache())
    with _in_a_sentence():
        transport = join(environment, device, exact=exact)
    nodes = transport.nodes.among(mesh.peers(0)) if transport.nodes is not None else None
    placement = place(decided.num_lanes, mesh.replicas, nodes)
    arithmetic = decided.arithmetic
    computed = arithmetic.precision, arithmetic.numerics, ", ".join(arithmetic.allow)
    _agree(transport, [seed, placement.num_lanes, threads, *computed], device if exact else None)
    streams = Streams(seed, device, looks=transport.world_size > 1)
    streams.enter(Domain.START)
    loop_state = LoopState()
    components = Components(
        transport=transport,
        strategy=choose_strategy(mesh, transport, placement, device),
        streams=streams,
        numerics=KeptNumerics(threads, exact=exact),
        step_timer=step_timer,
        metrics=_metrics(environment, folder, step_timer),
        unprepared=UnpreparedOptimizers(loop_state.position, loop_state.prepared.models, loop_state.grow),
        unreduced=UnreducedMetrics(),
        scaler=precision.scale,
        recorder=recorder,
        meter=_meter(environment, folder, step_timer, device),
        written=WrittenFiles(folder.path if folder else None) if transport.world_size > 1 else None,
    )
    components.strategy.precision = precision
    if components.scaler is not None:
        loop_state.prepared.stateful["loss scale"] = components.scaler
    if recorder is not None and folder is not None:
        _observe(recorder, folder.carried(rank), components, loop_state)
    config = Config(
        environment=environment,
        folder=folder,
        device=device,
        threads=threads,
        seed=seed,
        arithmetic=decided.arithmetic,
        lanes_named=decided.lanes_named,
        mesh=mesh,
        placement=placement,
    )
    return RunState(config, components, loop_state)


def _metrics(environment: RankEnvironment, folder: RunFolder | None, step_timer: StepTimer) -> MetricsFile:
    path = folder.metrics if folder is not None and environment.position.rank == 0 else None
    settings = environment.settings
    return MetricsFile(path, step_timer, settings.restart.metrics_bytes if settings is not None else 0)


def _observe(recorder: Recorder, carried: Path, components: Components, loop_state: LoopState) -> None:
    """Let the observers that `verify` wants see the lanes."""
    if recorder.lanes is not None:
        components.strategy.observers.append(recorder.lanes)
        calm_random_numbers(loop_state.position, components.streams)
    if recorder.watches:
        compile_nothing()
        watch = LaneWatch(loop_state.position, loop_state.prepared.models, carried)
        components.strategy.observers.append(watch.observer)
        watch.begin()


def _recorder(environment: RankEnvironment, folder: RunFolder | None) -> Recorder | None:
    wanted: Mapping[str, object] = environment.settings.evidence if environment.settings else {}
    if not wanted or folder is None or MEASURE in wanted:
        return None
    recorder = Recorder(folder, environment.position.rank, wanted)
    if recorder.plain:
        calm()
    return recorder


def _meter(
    environment: RankEnvironment, folder: RunFolder | None, step_timer: StepTimer, device: torch.device
) -> Meter | None:
    wanted: Mapping[str, Any] = environment.settings.evidence if environment.settings else {}
    if MEASURE not in wanted or folder is None:
        return None
    return Meter(folder, environment.position.rank, wanted[MEASURE], step_timer, device)


def _default_threads(environment: RankEnvironment, mesh: Mesh, num_lanes: int) -> int:
    settings, here, bound = environment.settings, environment.position.local_world_size, len(os.sched_getaffinity(0))
    if settings is None:
        cores = bound if environment.task is None else cores_of(environment.task, os.environ)
        return min(bound, mesh.default_threads(cores, num_lanes, here))
    if mesh.strategy not in DATA_PARALLEL:
        return settings.threads
    return mesh.default_threads(settings.cores, num_lanes, max(settings.seat.sizes) if settings.seat else here)


def _whole_number(seed: Any) -> int:
    try:
        return operator.index(seed)
    except TypeError:
        raise UsageError(f"`seed` must be a whole number, but is {seed!r}.", "Pass seed=0, or leave it out.") from None


def _check_words(**given: Any) -> None:
    for name, value in given.items():
        if value is not None and not isinstance(value, str):
            problem = f"`{name}` must be a word, but is {value!r}."
            raise UsageError(problem, "Leave it out to let lockstep choose.")


def _check_numbers(lanes: int | None, threads: int | None) -> None:
    for name, value in (("lanes", lanes), ("threads", threads)):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise UsageError(
                f"`{name}` must be a whole number of at least 1, but is {value!r}.",
                "Leave it out to let lockstep choose.",
            )


def _agree(transport: Transport, mine: Sequence[Any], device: torch.device | None) -> None:
    """Compare what every rank has to have, and name what makes bits differ. Collective: call it on every rank."""
    kind = device_name(device) if device is not None else ""
    told = transport.all_gather_object([*mine, kind, hash("lockstep")], "init")
    *same, devices, hashes = zip(*told, strict=True)
    names = ("seed", "lanes", "threads", "precision", "numerics", "allow")
    for name, values in zip(names, same, strict=True):
        if len(set(values)) > 1:
            raise UsageError(
                f"`{name}` must be the same on every rank, but the ranks have {list(values)}.",
                "Give every rank the same value.",
            )
    if transport.rank == 0:
        for note in filter(None, (unlike_devices(devices), unlike_hashes(hashes))):
            say(note)


def finish() -> None:
    """End the run of this process: wait for the others, compare the models, write the result, let go.

    Called automatically at exit. A rank whose script failed does not wait. A rank that ends while others continue makes
    them raise, with both lines.

    Raises:
        UsageError: when the ranks no longer hold the same model, or are not at the same place.
    """
    if not _present:
        return
    run = _present.pop()
    run.loop_state.ended = True
    let_go()
    device_words.present.clear()
    atexit.unregister(_finish_at_exit)
    end(run)


def _finish_at_exit() -> None:
    """`finish`, where an exception can no longer change the exit code by itself."""
    global _is_at_exit  # noqa: PLW0603 - a process exits once
    _is_at_exit = True
    run = _present[-1] if _present else None
    try:
        finish()
    except PeerLost:
        pass  # the other rank's failure is reported
    except LockstepError as error:
        if run is None or run.config.folder is None or not _leave_failure(run.components, run.config.folder, error):
            say(error)
        flush_output()
        os._exit(1 if isinstance(error, RanksDiffer) else 2)


def _leave_failure(components: Components, folder: RunFolder, error: LockstepError) -> bool:
    """Leave the failure for the launcher; False when it could not be written."""
    rank = components.transport.rank
    return write_failure(folder.failure(rank), describe(rank, error, Path(sys.argv[0]).absolute(), ()))
