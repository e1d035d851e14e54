"""When a rank's recorder records, under `samebits verify`: after each step, at the end, and samples fetched a second time.

After the last wanted step the script continues: its loops over steps and epochs end as if the data were over, so the code
after them runs too, and what it leaves is recorded as "at the end". A script that does not end within a while (it waits
for more steps) is ended, and that is reported: it is no fault.

Runs in: the main thread of each rank; `_end_here` in a timer's thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch

from samebits.protocol.environment import MEASURE, RankEnvironment
from samebits.protocol.journal.spans import spans
from samebits.protocol.layout.cut import Cut
from samebits.protocol.layout.stream_key import Domain, stream_key
from samebits.protocol.run_folder import RunFolder
from samebits.rank.data.lane_dataset import LaneIndices
from samebits.rank.data.loader import LanePart, PreparedLoader
from samebits.rank.data.order import EpochPlan
from samebits.rank.recording.calm import calm, calm_random_numbers
from samebits.rank.recording.meter import Meter
from samebits.rank.recording.recorder import Recorder, Taken
from samebits.rank.recording.trace import Trace
from samebits.rank.run.loop_state import LoopState
from samebits.rank.run.position.step_timer import StepTimer
from samebits.rank.run.run_state import Components, RunState

NUM_STEPS = 2
"""How many steps are fetched again: those that every proof has recorded."""


def look_again(run: RunState, recorder: Recorder, purpose: str) -> None:
    """Fetch the first samples of every loader that has trained, or evaluated. No exchange; random streams stay where they are."""
    for loader in run.loop_state.prepared.loaders:
        if loader.context.number in recorder.plans if purpose == "training" else loader.has_fetched(purpose):
            _look_again(run, recorder, loader, purpose)


def _look_again(run: RunState, recorder: Recorder, loader: PreparedLoader, purpose: str) -> None:
    of = f" of loader {loader.context.number + 1}" if len(run.loop_state.prepared.loaders) > 1 else ""
    label = f"{purpose} samples{of}"
    with run.components.streams.elsewhere():
        try:
            plan = recorder.plans[loader.context.number] if purpose == "training" else loader.plan_evaluation(0)
            for part, batch in _fetched(loader, purpose, plan):
                recorder.samples_again(f"{label}, step {part.step + 1}, lane {part.lane}", batch)
        except Exception as error:  # noqa: BLE001 - a data set that gives its samples once; the script never asks twice
            recorder.samples_again(f"{label}, the end", type(error).__name__)


def _fetched(loader: PreparedLoader, purpose: str, plan: EpochPlan) -> Iterator[tuple[LanePart, Any]]:
    context = loader.context
    cut = Cut(plan.batch_size, context.num_lanes)
    found = []
    for step, samples in enumerate(plan.steps[:NUM_STEPS]):
        lanes = cut.lanes_of(samples)
        for mine in context.lanes:
            lane = context.num_lanes - 1 - mine
            key = stream_key(context.seed, Domain.FETCH, "again", purpose, context.number, step, lane)
            if lanes[lane]:
                found.append(LanePart(step, lane, LaneIndices(lanes[lane], key)))
    yield from zip(found, loader.fetch(found, evaluation=purpose == "evaluation"), strict=False)


LEAST_REST_S = 30.0
"""The code after the last step gets this long, or twice as long as the script took until then if that is more."""


def is_over(components: Components) -> bool:
    """Whether loops end here, because everything wanted is recorded."""
    return components.recorder is not None and components.recorder.over


def record_begin(run: RunState, loader: PreparedLoader, plan: EpochPlan | None) -> None:
    """Record what an epoch begins with; a stream has no `plan`."""
    if run.components.recorder is not None:
        run.components.recorder.initial(_taken(run))
        if plan is not None:
            run.components.recorder.plans.setdefault(loader.context.number, plan)


def record_before(run: RunState) -> None:
    """Record what the next step begins with, where `verify` compares a resumed run. Collective: call it on every rank."""
    if run.components.recorder is not None:
        run.components.recorder.before_step(run.components.step_timer.step, _taken(run))


def stops_after_saving(run: RunState) -> bool:
    """Whether `verify` wants the run to end after a state is saved."""
    return run.components.recorder is not None and bool(run.components.recorder.stops)


def record_saved(run: RunState) -> None:
    """After a state is on the disk: end here, as if the run were killed. Collective: call it on every rank.

    Call it only if `stops_after_saving`.
    """
    recorder = run.components.recorder
    assert recorder is not None
    recorder.variables(run.components.step_timer.step)
    run.components.transport.barrier("the stop of verify")
    os._exit(0)


def record_step(run: RunState) -> None:
    """Record a step whose body is finished. Collective: call it on every rank.

    Raises:
        SystemExit: after the last wanted step, where the script's end is not wanted.
    """
    recorder = run.components.recorder
    if recorder is None:
        return
    recorder.after_step(run.components.step_timer.step, _taken(run))
    if recorder.over:
        _begin_rest(run, recorder)


def record_left(components: Components) -> None:
    """Note that the script left its loop in the middle of a step; it is recorded where all ranks are next."""
    if components.recorder is not None:
        components.recorder.left = components.step_timer.step


def settle(run: RunState) -> None:
    """Record, between steps, a step whose loop was left. Collective: call it on every rank."""
    if run.components.recorder is not None and run.components.recorder.left is not None:
        record_step(run)


def record_end(run: RunState) -> None:
    """Record the end of the script. Collective: call it on every rank."""
    recorder = run.components.recorder
    if recorder is None or not recorder.to_the_end:
        return
    settle(run)
    if not recorder.over:
        look_again(run, recorder, "training")
    look_again(run, recorder, "evaluation")
    recorder.at_end(_taken(run))
    recorder.note_ending(reached=True)


def _begin_rest(run: RunState, recorder: Recorder) -> None:
    # Asynchronous ranks make their steps independently, so no step is the last one of all.
    if not recorder.to_the_end or run.config.mesh.asynchronous:
        raise SystemExit(0)
    look_again(run, recorder, "training")
    recorder.flush_end()
    recorder.note_ending(reached=False)
    # No rank may fail after its last step before all have recorded theirs.
    run.components.transport.barrier("the last step of verify")
    seconds = max(LEAST_REST_S, 2 * (time.monotonic() - recorder.began_s))
    timer = threading.Timer(seconds, _end_here, (recorder, seconds))
    timer.daemon = True
    timer.start()


def _end_here(recorder: Recorder, seconds: float) -> None:
    """End a script that never ends. Every rank does so at about this time; seeing another's end is no failure."""
    recorder.note_ending(reached=False, why=f"it did not end within {seconds:.0f} s")
    os._exit(0)


def _taken(run: RunState) -> Taken:
    return Taken(
        run.loop_state.prepared.models,
        [*run.loop_state.prepared.taken, *run.loop_state.prepared.stateful.values()],
        run.loop_state.prepared.tracked,
        vars(run.loop_state.values),
        run.is_here,
        partial(run.components.strategy.whole_state, everyone=True),
    )


def observe(recorder: Recorder, components: Components, loop_state: LoopState) -> None:
    """Let the observers that `verify` wants see the lanes."""
    # A pipeline has an order of its own.
    recorder.reverses = recorder.reverses and not components.strategy.is_ordered
    if recorder.lanes is not None:
        components.strategy.observers.append(recorder.lanes)
        calm_random_numbers(loop_state.position, components.streams)


def make_recorder(environment: RankEnvironment, folder: RunFolder | None) -> Recorder | None:
    wanted: Mapping[str, object] = environment.settings.evidence if environment.settings else {}
    if not wanted or folder is None or MEASURE in wanted:
        return None
    recorder = Recorder(folder, environment.position.rank, wanted)
    if recorder.plain:
        calm()
    return recorder


def make_meter(
    environment: RankEnvironment, folder: RunFolder | None, step_timer: StepTimer, device: torch.device
) -> Meter | None:
    wanted: Mapping[str, Any] = environment.settings.evidence if environment.settings else {}
    if MEASURE not in wanted or folder is None:
        return None
    return Meter(folder, environment.position.rank, wanted[MEASURE], step_timer, device)


def trace_steps(environment: RankEnvironment, folder: RunFolder | None, step_timer: StepTimer) -> None:
    """Let the step timer write the trace that the command line wants, and a torch.profiler of the script show its ranges."""
    spans.profiler = torch.autograd.profiler
    rank, settings = environment.position.rank, environment.settings
    if folder is not None and settings is not None and settings.trace_steps:
        step_timer.take_trace(Trace(folder.traces / f"rank-{rank:05d}.json", rank, settings.trace_steps))
