"""The parts of a run: this process is set up, the ranks meet, and what was decided becomes a `RunState`."""

from __future__ import annotations

from samebits.machine.leftovers import compiler_cache, remove_half_written
from samebits.protocol.arithmetic import why_not_exact
from samebits.protocol.environment import RankEnvironment
from samebits.protocol.layout.placement import place
from samebits.protocol.run_folder import RunFolder
from samebits.rank.checks.checks import ScriptChecks
from samebits.rank.init.device import keep_freed_memory
from samebits.rank.init.join import join
from samebits.rank.init.numerics import KeptNumerics, agree_on_settings, refuse_several_devices, set_numerics
from samebits.rank.init.numerics import allow as allow_operators
from samebits.rank.init.random_streams import Streams
from samebits.rank.position.loop_state import LoopState
from samebits.rank.position.metrics import MetricsFile
from samebits.rank.position.observers import Observers
from samebits.rank.position.participants import States
from samebits.rank.position.run_state import Components, Config, RunState
from samebits.rank.position.step_timer import StepTimer
from samebits.rank.recording.wanted import make_observers, make_recorder, purpose_of, trace_steps
from samebits.rank.run.decisions import Decided, in_a_sentence
from samebits.rank.run.prepare.optimizers import make_precision
from samebits.rank.strategy.choice import choose_strategy, devices_for_stages


def assemble(environment: RankEnvironment, decided: Decided, states: States) -> RunState:
    """Set the process up and meet the others; `states` keeps the run's."""
    mesh, device, threads, seed = decided.mesh, decided.device, decided.threads, decided.seed
    exact = decided.arithmetic.numerics != "fast"
    _set_process_up(decided)
    precision = make_precision(str(decided.arithmetic.precision), device, environment)
    rank = environment.position.rank
    folder = RunFolder(environment.settings.run_folder) if environment.settings else None
    step_timer = StepTimer(folder.journal(rank) if folder else None)
    trace_steps(environment, folder, step_timer)
    recorder = make_recorder(environment, folder)
    # Before any rank of this node can compile: the ranks meet only below.
    if environment.position.local_rank == 0:
        remove_half_written(compiler_cache())
    with in_a_sentence():
        transport = join(environment, device, exact=exact)
    nodes = transport.nodes.among(mesh.peers(0)) if transport.nodes is not None else None
    placement = place(decided.num_lanes, mesh.replicas, nodes)
    computed = decided.arithmetic.precision, decided.arithmetic.numerics, ", ".join(decided.arithmetic.allow)
    agree_on_settings(transport, [seed, placement.num_lanes, threads, *computed], device if exact else None)
    streams = Streams.started(seed, device, looks=transport.world_size > 1)
    settings = environment.settings
    loop_state = LoopState()
    if settings is not None:
        loop_state.epoch.skipped = settings.course.skipped
    strategy = choose_strategy(mesh, transport, placement, device, precision)
    # Behind all that may fail: they watch functions of Python and torch until the run ends.
    checks = ScriptChecks(loop_state, folder, rank, transport.world_size)
    why_not = why_not_exact(mesh.strategy, decided.arithmetic.numerics, decided.arithmetic.allow)
    observers = make_observers(environment, recorder, step_timer, device, why_not)
    components = Components(
        transport=transport,
        strategy=strategy,
        streams=streams,
        numerics=KeptNumerics(threads, exact=exact),
        step_timer=step_timer,
        metrics=_metrics(environment, folder, step_timer),
        checks=checks,
        states=states,
        observers=Observers(*observers),
        scaler=precision.scale,
    )
    if components.scaler is not None:
        loop_state.prepared.stateful["loss scale"] = components.scaler
    how = (
        decided.arithmetic,
        decided.lanes_named,
        mesh,
        placement,
        purpose_of(environment, recorder),
    )
    config = Config(environment, folder, device, threads, *how)
    run = RunState(config, components, loop_state)
    # Whoever looks at it was made before it.
    checks.run = run
    for one in observers:
        one.attach(run)
    return run


def _metrics(environment: RankEnvironment, folder: RunFolder | None, step_timer: StepTimer) -> MetricsFile:
    path = folder.metrics if folder is not None and environment.position.rank == 0 else None
    settings = environment.settings
    return MetricsFile(path, step_timer, settings.restart.metrics_bytes if settings is not None else 0)


def _set_process_up(decided: Decided) -> None:
    """Set what belongs to the process and not to the run: threads, kernels, memory."""
    arithmetic = decided.arithmetic
    set_numerics(decided.threads, exact=arithmetic.numerics != "fast")
    if devices_for_stages(decided.mesh, decided.device):
        refuse_several_devices(arithmetic.allow)
    # After `set_numerics`: an allowed operator lifts for itself what that has set for all.
    allow_operators(arithmetic.allow)
    keep_freed_memory()
