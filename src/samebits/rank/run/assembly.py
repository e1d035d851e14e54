"""The parts of a run: this process is set up, the ranks meet, and what was decided becomes a `RunState`."""

from __future__ import annotations

from samebits.machine.leftovers import compiler_cache, remove_half_written
from samebits.protocol.environment import RankEnvironment
from samebits.protocol.layout.placement import place
from samebits.protocol.run_folder import RunFolder
from samebits.rank.checks.lane_exchanges import LaneExchanges
from samebits.rank.checks.unprepared_optimizers import UnpreparedOptimizers
from samebits.rank.checks.unreduced_metrics import UnreducedMetrics
from samebits.rank.checks.written_files import WrittenFiles
from samebits.rank.init.device import keep_freed_memory
from samebits.rank.init.join import join
from samebits.rank.init.numerics import KeptNumerics, agree_on_settings, refuse_several_devices, set_numerics
from samebits.rank.init.numerics import allow as allow_operators
from samebits.rank.init.streams import Streams
from samebits.rank.run.decisions import Decided, in_a_sentence
from samebits.rank.run.loop.recording import make_meter, make_recorder, observe, trace_steps
from samebits.rank.run.loop_state import LoopState
from samebits.rank.run.position.metrics import MetricsFile
from samebits.rank.run.position.step_timer import StepTimer
from samebits.rank.run.prepare.optimizers import make_precision
from samebits.rank.run.run_state import Components, Config, RunState
from samebits.rank.strategy.choice import choose_strategy, devices_for_stages


def assemble(environment: RankEnvironment, decided: Decided) -> RunState:
    """Set the process up and meet the others."""
    mesh, device, threads, seed = decided.mesh, decided.device, decided.threads, decided.seed
    exact = decided.arithmetic.numerics != "fast"
    _set_process_up(decided)
    precision = make_precision(str(decided.arithmetic.precision), device, environment)
    rank, settings = environment.position.rank, environment.settings
    folder = RunFolder(settings.run_folder) if settings else None
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
    loop_state = LoopState()
    components = Components(
        transport=transport,
        strategy=choose_strategy(mesh, transport, placement, device),
        streams=streams,
        numerics=KeptNumerics(threads, exact=exact),
        step_timer=step_timer,
        metrics=MetricsFile(
            folder.metrics if folder is not None and rank == 0 else None,
            step_timer,
            settings.restart.metrics_bytes if settings is not None else 0,
        ),
        unprepared=UnpreparedOptimizers(loop_state.position, loop_state.prepared.models, loop_state.grow),
        lane_exchanges=LaneExchanges(loop_state.position),
        unreduced=UnreducedMetrics(),
        scaler=precision.scale,
        recorder=recorder,
        meter=make_meter(environment, folder, step_timer, device),
        written=WrittenFiles(folder.path if folder else None) if transport.world_size > 1 else None,
    )
    components.strategy.precision = precision
    if components.scaler is not None:
        loop_state.prepared.stateful["loss scale"] = components.scaler
    if recorder is not None:
        observe(recorder, components, loop_state)
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


def _set_process_up(decided: Decided) -> None:
    """Set what belongs to the process and not to the run: threads, kernels, memory."""
    arithmetic = decided.arithmetic
    set_numerics(decided.threads, exact=arithmetic.numerics != "fast")
    if devices_for_stages(decided.mesh, decided.device):
        refuse_several_devices(arithmetic.allow)
    # After `set_numerics`: an allowed operator lifts for itself what that has set for all.
    allow_operators(arithmetic.allow)
    keep_freed_memory()
