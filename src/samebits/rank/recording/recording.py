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

from torch import Tensor

from samebits.protocol.layout.cut import Cut
from samebits.protocol.layout.stream_key import Domain, stream_key
from samebits.rank.data.lane_dataset import LaneIndices
from samebits.rank.data.loader import LanePart, PreparedLoader
from samebits.rank.data.order import EpochPlan
from samebits.rank.position.moment import LoopPosition
from samebits.rank.position.observers import Observer
from samebits.rank.position.run_state import RunState
from samebits.rank.recording.calm import calm_random_numbers
from samebits.rank.recording.recorder import Recorder, Taken
from samebits.rank.recording.step_operators import StepOperators, make_operators
from samebits.rank.strategy.contract import PassResult

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


class Recording(Observer):
    """Lets a recorder record."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._operators: StepOperators | None = None
        self.run: RunState

    def attach(self, run: RunState) -> None:
        """Look at this run, and let it do what `verify` wants: go through lanes backwards, end where all is recorded."""
        self.run, recorder = run, self._recorder
        self._operators = make_operators(run.config.environment, run.config.folder)
        # A pipeline has an order of its own.
        run.loop_state.position.reverses = recorder.reverses and not run.components.strategy.is_ordered
        run.loop_state.is_recorded = recorder.over
        if recorder.lanes is not None:
            run.components.strategy.observers.append(recorder.lanes.take)
            calm_random_numbers(run.loop_state.position, run.components.streams)

    def begin_epoch(self, loader: PreparedLoader, plan: EpochPlan | None) -> None:
        self._recorder.initial(_taken(self.run))
        if plan is not None:
            self._recorder.plans.setdefault(loader.context.number, plan)

    def begin_loop(self) -> None:
        if self._recorder.left is not None:
            self.end_step()

    def before_step(self) -> None:
        self._recorder.before_step(self.run.components.step_timer.step, _taken(self.run))

    def begin_step(self, step: int, num_samples: int, is_first: bool) -> None:  # noqa: ARG002 - an observer's signature
        if self._operators is not None and self._operators.step == self._recorder.place(step):
            self._operators.begin(self.run.loop_state.position)

    def begin_pass(self) -> None:
        if self._operators is not None:
            self._operators.passes += 1

    def fetched(self, part: LanePart, batch: Any) -> None:
        self._recorder.samples(part.lane, batch)

    def end_pass(self, step: int, number: int, result: PassResult) -> None:
        models = self.run.loop_state.prepared.models
        parameters = [one for model in models for one in model.parameters()]
        norm = self.run.components.strategy.gradient_norm(parameters, 2.0)
        self._recorder.after_pass(step, number, (result.loss, norm), models)

    def logged(self, step: int, values: Mapping[str, float | Tensor]) -> None:
        self._recorder.logged(step, values)

    def end_step(self) -> None:
        """Raises SystemExit after the last wanted step, where the script's end is not wanted."""
        if self._operators is not None:
            self._operators.end()
        self._recorder.after_step(self.run.components.step_timer.step, _taken(self.run))
        if self._recorder.over:
            self.run.loop_state.is_recorded = True
            _begin_rest(self.run, self._recorder)

    def left_loop(self) -> None:
        """The step is recorded where all ranks are next."""
        self._recorder.left = self.run.components.step_timer.step

    def saved_state(self) -> None:
        """End here, as if the run were killed."""
        self._recorder.variables(self.run.components.step_timer.step)
        self.run.components.transport.barrier("the stop of verify")
        os._exit(0)

    def end_run(self) -> None:
        if not self._recorder.to_the_end:
            return
        self.begin_loop()
        if not self._recorder.over:
            look_again(self.run, self._recorder, "training")
        look_again(self.run, self._recorder, "evaluation")
        self._recorder.at_end(_taken(self.run))
        self._recorder.note_ending(reached=True, has_reversed=self.run.loop_state.position.has_reversed)


def _begin_rest(run: RunState, recorder: Recorder) -> None:
    # Asynchronous ranks make their steps independently, so no step is the last one of all.
    if not recorder.to_the_end or run.config.mesh.asynchronous:
        raise SystemExit(0)
    look_again(run, recorder, "training")
    recorder.flush_end()
    recorder.note_ending(reached=False, has_reversed=run.loop_state.position.has_reversed)
    # No rank may fail after its last step before all have recorded theirs.
    run.components.transport.barrier("the last step of verify")
    seconds = max(LEAST_REST_S, 2 * (time.monotonic() - recorder.began_s))
    timer = threading.Timer(seconds, _end_here, (recorder, seconds, run.loop_state.position))
    timer.daemon = True
    timer.start()


def _end_here(recorder: Recorder, seconds: float, position: LoopPosition) -> None:
    """End a script that never ends. Every rank does so at about this time; seeing another's end is no failure."""
    recorder.note_ending(
        reached=False, has_reversed=position.has_reversed, why=f"it did not end within {seconds:.0f} s"
    )
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
