"""A step: one optimizer update over one global batch, and the lanes of it that this rank carries."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from lockstep.caller import where
from lockstep.errors import UsageError
from lockstep.feed.batches import Batches
from lockstep.feed.loader import LanePart
from lockstep.journal.record import Phase
from lockstep.layout.schedule import Kind
from lockstep.layout.stream_key import Domain
from lockstep.layout.tree import tree_sum
from lockstep.run.loop.agreed import Agreed
from lockstep.run.loop.randomness import say_apart, say_seeded_lane
from lockstep.run.loop.whole_batch import LaneFeatures, WholeBatch
from lockstep.run.parts import Parts
from lockstep.run.position.region import Region
from lockstep.strategy.contract import Ordered, PassResult, StepCut
from lockstep.strategy.losses import check_loss
from lockstep.strategy.right_form import ORDERED_FORM, RIGHT_FORM


class Step:
    """What `run.steps(loader)` yields. Iterate it for the batches of this rank's lanes, perhaps none.

    Each iteration is a *pass* with a gradient of its own; a GAN iterates a step once for each optimizer.
    """

    def __init__(self, parts: Parts, cut: StepCut, lanes: Sequence[LanePart], fetched: Batches) -> None:
        self._parts, self._cut, self._lanes, self._fetched = parts, cut, lanes, fetched
        self._batches: list[Any] = []
        self._passes = 0
        self._result: PassResult | None = None
        self._closed = False

    @property
    def number(self) -> int:
        """The step's number since the start of the run, from 1."""
        return self._cut.step

    @property
    def num_samples(self) -> int:
        """Samples of the global batch."""
        return self._cut.num_samples

    @property
    def lane(self) -> int:
        """The number of the lane whose batch the loop is at, from 0: the key of what a script keeps from step to step for each
        lane, such as hidden states or environments.

        Raises:
            UsageError: outside of the step's lanes.
        """
        if self._parts.place.region is not Region.LANE:
            raise UsageError(f"step.lane is known inside the step's lanes:\n{RIGHT_FORM}")
        return self._parts.place.lane

    @property
    def loss(self) -> Agreed:
        """The loss of the last pass: the weighted mean over all lanes, the same bits on every rank.

        Raises:
            UsageError: before the first pass is finished, or when no lane called `run.backward`.
        """
        if self._result is None or self._result.loss is None:
            raise UsageError(
                f"step.loss is known after the step's lanes, and only if they call run.backward:\n{RIGHT_FORM}"
            )
        return Agreed(self._result.loss)

    def backward(self, loss_of: Callable[[Any], Any], *, over_batch: Callable[[Any], Tensor] | None = None) -> None:
        """One pass: `run.backward(loss_of(batch))` for every batch of this rank's lanes.

        A pipeline does forwards and backwards in an order of its own. There `loss_of` must call the model once, and what
        follows that call runs on the last stage only.

        Args:
            loss_of: the mean loss of a batch; with `over_batch`, the features of a batch: tensors with a row for each sample,
                alone or in a tuple, list or dict.
            over_batch: a loss that compares the samples of the whole batch with each other (SimCLR, CLIP, triplets): called on
                every rank with the features of all lanes, in the order of the batch; a scalar. The gradient is that of one
                device which has the whole batch. The graphs of all lanes of a rank are kept until it is known.

        Raises:
            UsageError: with `over_batch` where the model is cut into stages, and under hogwild.
        """
        if over_batch is not None:
            self._backward_over_batch(loss_of, over_batch)
            return
        ordered = self._parts.strategy.ordered
        if ordered is None:
            for batch in self:
                self._parts.strategy.backward(loss_of(batch), None)
            return
        with self._pass():
            for action in ordered.order(len(self._lanes)):
                if action.kind is Kind.FORWARD:
                    self._forward(ordered, action.micro_batch, loss_of)
                else:
                    ordered.backward_of(self._lanes[action.micro_batch].lane)

    def _backward_over_batch(self, features_of: Callable[[Any], Any], loss_of: Callable[[Any], Tensor]) -> None:
        parts = self._parts
        if parts.mesh.stages > 1 or parts.mesh.asynchronous:
            raise UsageError(
                f"over_batch= needs the whole model and all lanes of the batch, which {parts.strategy.name} does not have on a "
                f"rank. Use --strategy ddp or zero1."
            )
        if parts.placement.num_lanes == 1:
            self.backward(lambda batch: loss_of(features_of(batch)))
            return
        lanes = []
        with self._pass(is_look=True):
            for position, part in enumerate(self._lanes):
                lanes.append(LaneFeatures.of(features_of(self._enter_lane(position, part))))
                self._leave_lane()
        whole = WholeBatch(lanes, parts.transport, parts.device, where())
        parts.strategy.precision.enter()
        loss = loss_of(whole.features())
        parts.strategy.precision.leave()
        check_loss(loss, None)
        terms = whole.terms(loss, parts.scaler.value if parts.scaler is not None else 1.0)
        with self._pass():
            for position, part in enumerate(self._lanes):
                self._enter_lane(position, part)
                if (term := terms[position]) is not None:
                    parts.strategy.backward(term, 1.0)
                self._leave_lane()

    def _forward(self, ordered: Ordered, position: int, loss_of: Callable[[Any], Tensor]) -> None:
        part = self._lanes[position]
        batch = self._enter_lane(position, part)
        ordered.forward(part.lane, lambda: loss_of(batch))
        self._leave_lane()

    def __iter__(self) -> Iterator[Any]:
        if self._parts.strategy.ordered is not None:
            raise UsageError(
                f"A {self._parts.strategy.name} works on several lanes at a time, so the loop `for batch in step` has no place "
                f"for it. Hand over a function that calls the model once and returns the loss:\n{ORDERED_FORM}"
            )
        with self._pass():
            for position, part in enumerate(self._lanes):
                yield self._enter_lane(position, part)
                self._leave_lane()

    @contextmanager
    def _pass(self, *, is_look: bool = False) -> Iterator[None]:
        """One pass over the step's lanes, with a gradient of its own; or a look at what they compute, without backward."""
        parts = self._parts
        if self._closed:
            raise UsageError(f"This step is over: a step must be used before the next one is taken.\n{RIGHT_FORM}")
        if parts.place.region is not Region.STEP:
            raise UsageError(f"A step's lanes were iterated inside another loop over batches.\n{RIGHT_FORM}")
        parts.strategy.begin_pass(self._cut, where())
        parts.streams.look()
        parts.strategy.seen = parts.streams.seen
        parts.broken = "the loop over the step's lanes was left early"
        finished = False
        try:
            yield
            finished = True
        finally:
            if not finished:
                parts.strategy.precision.leave()
                parts.strategy.abandon()
                parts.lane_logs.clear()
                self._leave_lane_region()
        self._end_pass(is_look=is_look)

    def _enter_lane(self, position: int, part: LanePart) -> Any:
        parts = self._parts
        if position == len(self._batches):
            parts.ledger.enter(Phase.DATA, "fetch")
            self._batches.append(next(self._fetched))
            if parts.witness is not None:
                parts.witness.samples(part.lane, self._batches[position])
        batch = self._batches[position]
        parts.place.region, parts.place.lane = Region.LANE, part.lane
        parts.place.num_samples = len(part.indices)
        parts.strategy.begin_lane(part.lane)
        parts.strangers.begin_lane()
        parts.streams.enter(Domain.LANE, self.number, part.lane, self._passes)
        parts.ledger.enter(Phase.COMPUTE, f"lane {part.lane}")
        parts.strategy.precision.enter()
        return batch

    def _leave_lane(self) -> None:
        if self._parts.streams.was_seeded():
            say_seeded_lane(self._parts, where())
        self._parts.strategy.precision.leave()
        self._parts.strategy.end_lane()
        if self._passes == 0:
            self._fetched.look_ahead()
        self._leave_lane_region()

    def _leave_lane_region(self) -> None:
        self._parts.strangers.end_lane()
        self._parts.place.region, self._parts.place.lane = Region.STEP, -1

    def _end_pass(self, *, is_look: bool) -> None:
        parts = self._parts
        parts.ledger.enter(Phase.EXCHANGE, "gradients")
        notes, parts.lane_logs = parts.lane_logs, {}
        self._result = result = parts.strategy.end_pass(notes)
        parts.ledger.move(Phase.COMPUTE, Phase.EXCHANGE, parts.strategy.take_waited_s())
        parts.broken = None
        if result.apart:
            say_apart(parts, result.apart, self.number)
        if is_look:
            parts.streams.enter(Domain.STEP, self.number, self._passes, "look")
            self._log(result.notes)
            return
        self._passes += 1
        parts.streams.enter(Domain.STEP, self.number, self._passes)
        if result.loss is not None:
            _show_loss(parts, self.number, result.loss)
        if parts.witness is not None:
            norm = parts.strategy.gradient_norm([p for model in parts.models for p in model.parameters()], 2.0)
            parts.witness.after_pass(self.number, self._passes, (result.loss, norm), parts.models)
        self._log(result.notes)
        parts.ledger.enter(Phase.UPDATE, "optimizer")

    def _log(self, notes: dict[int, Any]) -> None:
        """Write what the lanes logged."""
        if notes:
            means = _means(notes, self._parts.placement.num_lanes)
            self._parts.metrics.write(means)
            if self._parts.witness is not None:
                self._parts.witness.logged(self.number, means)

    def skip_rest(self) -> None:
        """Fetch what was not used, so that the next step gets its own samples; the step is over."""
        for _ in range(len(self._lanes) - len(self._batches)):
            self._batches.append(next(self._fetched))
        self._batches.clear()
        self._closed = True
        self._parts.strategy.precision.leave()  # of a lane whose iterator the script still holds
        if not self._passes:
            self._parts.streams.enter(Domain.STEP, self.number, 0)  # fetching has left the stream of a lane


def _show_loss(parts: Parts, step: int, loss: float) -> None:
    was_finite = math.isfinite(parts.ledger.loss) or not parts.ledger.num_losses
    parts.ledger.loss = loss
    parts.ledger.num_losses += 1
    if was_finite and not math.isfinite(loss) and parts.transport.rank == 0:
        print(f"lockstep: the loss is {loss} in step {step}.", file=sys.stderr)


def _means(notes: dict[int, dict[str, tuple[float, float]]], num_lanes: int) -> dict[str, float]:
    """The values that lanes logged, each a (weighted sum, weight), as global means in the tree's order."""
    names = sorted({name for values in notes.values() for name in values})
    means = {}
    for name in names:
        pairs = [notes.get(lane, {}).get(name, (0.0, 0.0)) for lane in range(num_lanes)]
        weight = tree_sum([pair[1] for pair in pairs])
        means[name] = tree_sum([pair[0] for pair in pairs]) / weight if weight else float("nan")
    return means
