"""A step: one optimizer update over one global batch, and the lanes of it that this rank carries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from samebits.errors import UsageError
from samebits.notices import say
from samebits.protocol.journal.ring import FETCH, Phase
from samebits.protocol.layout.schedule import Kind
from samebits.protocol.layout.stream_key import Domain
from samebits.rank.caller import where
from samebits.rank.checks.loss_gauge import take_loss
from samebits.rank.data.loader import Batches, LanePart, StepPlan
from samebits.rank.position.moment import Region
from samebits.rank.position.run_state import RunState
from samebits.rank.position.tally import Agreed
from samebits.rank.run.loop.counts import WITH_LOSSES, CountedLoss, refuse_whole_batch, terms_of_counted, totals_of
from samebits.rank.run.loop.lane_sum import LaneFeatures, terms_over_batch
from samebits.rank.run.loop.per_lane import forget_open
from samebits.rank.run.loop.rows import log_of_lanes, receive, report
from samebits.rank.strategy.contract import ORDERED_FORM, RIGHT_FORM, AnyPass, OpenLane, OrderedPass, Pass, PassResult

CANNOT_CONTINUE = "This step is over: its lanes cannot continue."


class Step:
    """What `run.steps(loader)` yields. Iterate it for the batches of this rank's lanes, perhaps none.

    Each iteration is a *pass* with a gradient of its own; a GAN iterates a step once for each optimizer.
    """

    def __init__(
        self, run: RunState, plan: StepPlan, fetched: Batches, index: int, result: PassResult | None = None
    ) -> None:
        self.index = index
        """The step's number in its epoch, from 0, also where a resumed run continues in the middle of the epoch."""
        self.number = plan.cut.step
        """The step's number since the start of the run, from 1."""
        self._run, self._cut, self._lanes, self._fetched = run, plan.cut, plan.parts, fetched
        self.lanes = tuple(part.lane for part in run.in_loop_order(plan.parts))
        """The numbers of this rank's lanes that have samples: as many batches as an iteration has."""
        self._batches: list[Any] = []
        self._passes, self._closed, self._result = 0, result is not None, result
        self._current: AnyPass | None = None

    @property
    def num_samples(self) -> int:
        """Samples of the global batch."""
        return self._cut.num_samples

    @property
    def lane(self) -> int:
        """The number of the lane whose batch the loop is at, from 0.

        It is the key for what a script keeps from step to step for each lane, such as hidden states or environments.

        Raises:
            UsageError: outside the step's lanes.
        """
        if self._run.loop_state.position.region is not Region.LANE:
            raise UsageError("step.lane is known inside the step's lanes only.", f"Read it there:\n{RIGHT_FORM}")
        return self._run.loop_state.position.lane

    @property
    def loss(self) -> Agreed:
        """The loss of the last pass: the weighted mean over all lanes, the same bits on every rank.

        To read it on a GPU is to wait for all work before it.

        Raises:
            UsageError: before the first pass is finished, or when no lane called `run.backward`.
        """
        if self._result is None or (loss := self._result.loss) is None:
            raise UsageError(
                "step.loss is known after the step's lanes, and only if they call run.backward.",
                f"Read it after the inner loop:\n{RIGHT_FORM}",
            )
        return Agreed(loss)

    def backward(
        self,
        loss_of: Callable[..., Any],
        *,
        over_batch: Callable[[Any], Tensor] | None = None,
        counts: Callable[[Any], Any] | None = None,
    ) -> None:
        """One pass: `run.backward(loss_of(batch))` for every batch of this rank's lanes.

        A pipeline does forwards and backwards in an order of its own. There `loss_of` must call the model once, and the
        code after that call runs on the last stage only.

        Args:
            loss_of: the mean loss of a batch; with `over_batch`, the features of a batch: tensors with a row for each
                sample, alone or in a tuple, list or dict.
            over_batch: a loss that compares the samples of the whole batch with each other (SimCLR, CLIP, triplets):
                called on every rank with the features of all lanes, in the order of the batch; a scalar. The gradient
                is that of one device with the whole batch. A rank keeps the graphs of all its lanes until it is known.
            counts: what the losses of a batch are divided by, where each has a count of its own (boxes, pixels): a number,
                or a dict or list of numbers, which all lanes are asked for first. Then `loss_of(batch, totals)` gets the
                sums over the whole batch, and what it returns is added up over the lanes: the gradient is that of one
                device with the whole batch. A rank holds the batches of all its lanes.

        Raises:
            UsageError: with `over_batch` where the model is cut into stages, under hogwild, and with both.
        """
        if over_batch is not None or counts is not None:
            refuse_whole_batch(self._run, over_batch=over_batch is not None, counts=counts is not None)
        if over_batch is not None:
            self._backward_over_batch(loss_of, over_batch)
            return
        with self._pass() as current:
            if counts is not None:
                batches = {part.lane: self._fetch(position) for position, part in enumerate(self._lanes)}
                loss_of = CountedLoss(self._run, loss_of, totals_of(self._run, batches, counts), self._cut.weights)
            if isinstance(current, OrderedPass):
                self._in_order(current, loss_of)
                return
            for part, batch in self._batches_of(current):
                part.backward(loss_of(batch), None)

    def _backward_over_batch(self, features_of: Callable[[Any], Any], loss_of: Callable[[Any], Tensor]) -> None:
        run = self._run
        if run.config.placement.num_lanes == 1:
            self.backward(lambda batch: loss_of(features_of(batch)))
            return
        with self._pass(is_look=True) as current:
            lanes = [LaneFeatures.of(features_of(batch)) for _, batch in self._batches_of(current)]
        terms = terms_over_batch(run, run.in_loop_order(lanes), loss_of)
        self._backward_terms({part.lane: term for part, term in zip(self._lanes, terms, strict=True)})

    def _backward_terms(self, terms: dict[int, Tensor | None]) -> None:
        """A pass in which each lane has the backward of its term, if it has one."""
        with self._pass() as current:
            for number, (lane, _) in zip(self.lanes, self._batches_of(current), strict=True):
                if (term := terms.get(number)) is not None:
                    lane.backward(term, 1.0)

    def _in_order(self, current: OrderedPass, loss_of: Callable[[Any], Tensor]) -> None:
        for action in current.order(len(self._lanes)):
            part = self._lanes[action.micro_batch]
            self._fetch_until(time.monotonic() + current.spare_s(action.kind), part.lane)
            if action.kind is not Kind.FORWARD:
                current.backward_of(part.lane)
                continue
            batch = self._fetch(action.micro_batch)
            self._enter_lane(part, None)
            current.forward(part.lane, lambda batch=batch: loss_of(batch))  # type: ignore[misc]
            self._leave_lane(None)

    def _fetch_until(self, until: float, lane: int) -> None:
        """Fetch batches of the lanes to come while nothing else could be done for `lane`."""
        while len(self._batches) < len(self._lanes) and time.monotonic() < until:
            self._fetch(len(self._batches))
            self._run.components.step_timer.enter(Phase.COMPUTE, f"lane {lane}")

    def _batches_of(self, current: Pass | OrderedPass) -> Iterator[tuple[OpenLane, Any]]:
        """Open each lane of a pass and yield it with its batch."""
        assert isinstance(current, Pass)
        for position, part in self._run.in_loop_order([*enumerate(self._lanes)]):
            batch = self._fetch(position)
            lane = self._enter_lane(part, current)
            yield lane, batch
            if self._current is not current:
                raise UsageError(CANNOT_CONTINUE, f"Write the loop like this:\n{RIGHT_FORM}")
            self._leave_lane(lane)

    def __iter__(self) -> Iterator[Any]:
        if self._run.components.strategy.is_ordered:
            raise UsageError(
                f"A {self._run.components.strategy.name} works on several lanes at a time, so it cannot use the loop "
                "`for batch in step`.",
                f"Pass a function that calls the model once and returns the loss:\n{ORDERED_FORM}",
            )
        with self._pass() as current:
            for _, batch in self._batches_of(current):
                yield batch
        if self._run.loop_state.open_pass.is_counted:
            self._backward_terms(terms_of_counted(self._run))

    @contextmanager
    def _pass(self, *, is_look: bool = False) -> Iterator[Pass | OrderedPass]:
        """One pass over the step's lanes, with its own gradient; or a look at what they compute, without backward."""
        run = self._run
        _refuse_pass(run, self._closed)
        run.components.checks.begin_pass(is_first=self._passes == 0)
        for begin_pass in run.components.observers.begin_pass:
            begin_pass()
        run.components.states.enter_pass(self._undo)
        if run.loop_state.prepared.per_lane:
            forget_open(run)
        current = run.components.strategy.begin_pass(self._cut, where())
        # What the script drew since the last look: ranks compare it when this pass ends.
        seen = run.components.streams.look()
        run.loop_state.open_pass.broken = "the loop over the step's lanes was left early"
        self._current = current
        try:
            yield current
        except BaseException:
            if self._current is current:
                self._abandon(current)
            raise
        self._end_pass(current, seen, is_look=is_look)
        self._current = None

    def _abandon(self, current: AnyPass) -> None:
        """Drop a pass that will not be finished."""
        self._current = None
        current.abandon()
        self._run.loop_state.open_pass.forget()
        self._leave_lane_region()

    def _undo(self) -> None:
        """Take back what the lanes of an open pass have changed."""
        if self._current is not None:
            self._current.abandon()

    def _fetch(self, position: int) -> Any:
        """The batch of a lane, by its position among this rank's; those before it are fetched first."""
        run = self._run
        while position >= len(self._batches):
            run.components.step_timer.enter(Phase.DATA, FETCH)
            self._batches.append(self._next())
            for fetched in run.components.observers.fetched:
                fetched(self._lanes[len(self._batches) - 1], self._batches[-1])
        return self._batches[position]

    def _next(self) -> Any:
        try:
            return next(self._fetched)
        except Exception as error:
            self._run.components.states.take_after(error)
            raise

    def _enter_lane(self, part: LanePart, current: Pass | None) -> Any:
        """Enter the lane; return it opened, None where an ordered pass opens it."""
        run = self._run
        run.loop_state.position.region, run.loop_state.position.lane = Region.LANE, part.lane
        run.loop_state.position.num_samples = len(part.indices)
        run.loop_state.open_pass.lane = current.begin_lane(part.lane) if current is not None else None
        run.components.checks.enter_lane()
        run.components.streams.enter(Domain.LANE, self.number, part.lane, self._passes)
        run.components.step_timer.enter(Phase.COMPUTE, f"lane {part.lane}")
        return run.loop_state.open_pass.lane

    def _leave_lane(self, lane: OpenLane | None) -> None:
        if self._run.components.streams.was_seeded():
            _say_seeded_lane(self._run, where())
        self._run.components.checks.leave_lane()
        if lane is not None:
            lane.end()
        # Later passes have their batches already. In the first, the next one is fetched while this lane's work is queued.
        if self._passes == 0:
            self._fetched.look_ahead()
        self._leave_lane_region()

    def _leave_lane_region(self) -> None:
        run = self._run
        run.loop_state.open_pass.lane = None
        run.components.checks.close_lane()
        if run.loop_state.position.region is Region.LANE:
            run.loop_state.position.region, run.loop_state.position.lane = Region.STEP, -1

    def _end_pass(self, current: AnyPass, seen: int, *, is_look: bool) -> None:
        run = self._run
        run.components.step_timer.enter(Phase.EXCHANGE, "gradients")
        self._result = result = current.end(report(run, 0 if is_look else self._passes + 1), seen)
        lanes = receive(run, result.rows)
        run.components.step_timer.move(Phase.COMPUTE, Phase.EXCHANGE, run.components.strategy.take_waited_s())
        run.loop_state.open_pass.broken = None
        if result.apart:
            _say_apart(run, result.apart, self.number)
        take_loss(run, self.number, result.pass_loss)
        # A rank without lanes hears of it here.
        is_look = is_look or _is_counted(run, result)
        # A look has merged the lanes' statistics, which the next pass would not take back.
        if not is_look or run.loop_state.prepared.members.buffers:
            run.components.states.forget_step()
        self._passes += not is_look
        run.components.streams.enter(Domain.STEP, self.number, self._passes, *["look"] * is_look)
        if not is_look:
            for end_pass in run.components.observers.end_pass:
                end_pass(self.number, self._passes, result)
            run.components.step_timer.enter(Phase.UPDATE, "optimizer")
        log_of_lanes(run, self.number, lanes)

    def close(self) -> None:
        """End the step; abandon a pass whose iterator the script still holds."""
        self._closed = True
        if (current := self._current) is not None:
            self._abandon(current)

    def skip_rest(self) -> None:
        """Fetch what was not used, so that the next step gets its own samples, and end the step."""
        for _ in self._lanes[len(self._batches) :]:
            self._next()
        self._batches.clear()
        self.close()
        if not self._passes:
            # Fetching has left the stream of a lane.
            self._run.components.streams.enter(Domain.STEP, self.number, 0)


def _is_counted(run: RunState, result: PassResult) -> bool:
    """Whether lanes have kept their losses, so that this was a look; raise `UsageError` where others had a backward."""
    is_counted = run.loop_state.open_pass.is_counted
    if is_counted and result.loss is not None:
        raise UsageError(
            "Some lanes called run.backward with counts= and some without, so they cannot be added.",
            f"Pass counts= in every lane or in none:\n{WITH_LOSSES}",
        )
    return is_counted


def _refuse_pass(run: RunState, is_over: bool) -> None:
    """Raise `UsageError` where no pass may begin."""
    if is_over:
        raise UsageError(
            "This step is over: the next one was taken, or nobody holds the iterator of its steps any more.",
            "Where you call next, keep the iterator, `steps = run.steps(loader, epochs=n)`. Or write the loop like this:\n"
            f"{RIGHT_FORM}",
        )
    if run.loop_state.position.region is not Region.STEP:
        raise UsageError(
            "A step's lanes were iterated inside another loop over batches.",
            f"Write one loop after the other:\n{RIGHT_FORM}",
        )
    if run.loop_state.resumption.late is not None:
        run.loop_state.resumption.late.require()
    if run.loop_state.resumption.schedulers is not None:
        run.loop_state.resumption.schedulers(True)
    run.loop_state.prepared.preparations.refuse_written()


def _say_apart(run: RunState, apart: Sequence[int], step: int) -> None:
    """Say that ranks drew other numbers than rank 0 outside lanes, before those of `step`; any rank may call it."""
    if run.components.transport.rank == 0 and not run.loop_state.notices.apart:
        ranks = f"rank {apart[0]}" if len(apart) == 1 else f"ranks {', '.join(map(str, apart))}"
        say(
            f"{ranks} drew different random numbers than rank 0 outside lanes before step {step} (under "
            f"`if run.is_main:`, or in a loop of a different length), so later draws there differ too. Draw the same "
            f"numbers on every rank, or use your own generator: torch.Generator().manual_seed(run.seed(...))."
        )
    run.loop_state.notices.apart = True


def _say_seeded_lane(run: RunState, line: str) -> None:
    """Say that a lane seeded torch itself; `line` is that of the loop over the lanes."""
    if not run.loop_state.notices.seeded_lane and run.components.transport.rank == 0:
        say(
            f"{line}: torch.manual_seed was called inside a lane and replaced the lane's own stream. A seed made from "
            f"a call count or the rank depends on the number of ranks: use run.seed(..., step.number, lane)."
        )
    run.loop_state.notices.seeded_lane = True
