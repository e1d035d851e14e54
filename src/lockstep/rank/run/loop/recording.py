"""When a rank's recorder records, under `lockstep verify`: after each step, at the end, and samples fetched a second time.

After the last wanted step the script goes on: its loops over steps and epochs end as if the data were over, so the code
after them runs too, and what it leaves is recorded as "at the end". A script that does not end within a while (it waits
for more steps) is ended, and that is reported: it is no fault.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from lockstep.protocol.layout.cut import Cut
from lockstep.protocol.layout.stream_key import Domain, stream_key
from lockstep.rank.data.lane_dataset import LaneIndices
from lockstep.rank.data.loader import LanePart, PreparedLoader
from lockstep.rank.data.order import EpochPlan
from lockstep.rank.recording.recorder import Recorder, Taken
from lockstep.rank.run.run_state import Components, RunState

NUM_STEPS = 2
"""How many steps are fetched again: those that every proof has recorded."""


def look_again_at_training(run: RunState, recorder: Recorder) -> None:
    """Fetch the first samples of every loader that has trained. No exchange; random streams stay where they are."""
    for loader in run.loop_state.prepared.loaders:
        if loader.context.number in recorder.plans:
            _look_again(run, recorder, loader, "training")


def look_again_at_evaluation(run: RunState, recorder: Recorder) -> None:
    """Do the same with every loader that has evaluated."""
    for loader in run.loop_state.prepared.loaders:
        if loader.has_fetched("evaluation"):
            _look_again(run, recorder, loader, "evaluation")


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
        look_again_at_training(run, recorder)
    look_again_at_evaluation(run, recorder)
    recorder.at_end(_taken(run))
    recorder.note_ending(reached=True)


def _begin_rest(run: RunState, recorder: Recorder) -> None:
    if not recorder.to_the_end or run.config.mesh.asynchronous:  # such ranks make their steps independently
        raise SystemExit(0)
    look_again_at_training(run, recorder)
    recorder.flush_end()
    recorder.note_ending(reached=False)
    run.components.transport.barrier("the last step of verify")  # no rank fails after it before all have recorded it
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
