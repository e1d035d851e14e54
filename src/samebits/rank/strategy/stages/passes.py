"""A pass through stages: lane by lane, or as a pipeline in which stages work on different lanes at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samebits.errors import UsageError
from samebits.protocol.layout.schedule import Action, Kind, schedule
from samebits.rank.strategy.contract import OpenLane, OrderedPass, Pass, PassResult
from samebits.rank.strategy.replica.lane_pass import LanePass, ReplicaLane
from samebits.rank.strategy.stages.contract import Stages
from samebits.rank.strategy.stages.cut_at_first_call import CutAtFirstCall
from samebits.rank.strategy.stages.hand_over import Call, GradientExchange
from samebits.rank.strategy.stages.rank_stages import RankStages
from samebits.rank.strategy.stages.runner import HandedOver, StageRunner


class StagedPass(Pass):
    """See `Pass`.

    Args:
        inner: the replica's pass; replaced when the model is cut.
        cutting: cuts the model after the first lane that calls it.
        stages: where the parts of the model are.
    """

    def __init__(self, inner: LanePass, cutting: CutAtFirstCall, stages: Stages) -> None:
        self.inner, self.cutting, self.stages = inner, cutting, stages

    def begin_lane(self, lane: int) -> OpenLane:
        opened = self.inner.begin_lane(lane)
        if not self.cutting.is_done:
            self.cutting.begin_lane()
        self.stages.is_in_lane = True
        return StagedLane(self, opened)

    def end(self, rows: Mapping[str, Any], seen: int) -> PassResult:
        if not self.cutting.is_done:
            self.inner = self.cutting.behind_pass(self.inner)
        result = self.inner.end(rows, seen)
        self.stages.end_pass()
        return result

    def abandon(self) -> None:
        self.inner.abandon()
        self.forget_lane()

    def forget_lane(self) -> None:
        self.cutting.forget_lane()
        self.stages.is_in_lane = False
        self.stages.end_lane()


class StagedLane(OpenLane):
    """See `OpenLane`; made by `StagedPass`."""

    def __init__(self, of: StagedPass, opened: ReplicaLane) -> None:
        self._pass, self._opened = of, opened

    def backward(self, loss: Tensor, weight: float | None, *, retain_graph: bool = False) -> None:
        stages, cutting = self._pass.stages, self._pass.cutting
        if not cutting.is_done:
            cutting.require_call()
        with stages.going_back(), cutting.going_back():
            self._opened.backward(loss, weight, retain_graph=retain_graph)

    def end(self) -> None:
        of = self._pass
        self._opened.leave_forward()
        if of.cutting.has_called:
            of.inner, self._opened = of.cutting.behind_lane(of.inner, self._opened)
        self._opened.end()
        of.forget_lane()


@dataclass
class _InFlight:
    """A lane between its forward and its backward."""

    call: Call
    loss: Tensor | None
    """On the last stage."""


class PipelinePass(OrderedPass):
    """A pass in which stages work on different lanes at the same time.

    Args:
        cutting: cuts the model after the first lane, which is computed whole.
        stages: those of this rank and the others of its replica.
    """

    def __init__(self, inner: LanePass, cutting: CutAtFirstCall, stages: RankStages) -> None:
        self._staged, self._stages = StagedPass(inner, cutting, stages), stages
        self._in_flight: dict[int, _InFlight] = {}
        self._whole_lane: int | None = None
        """The lane that was computed whole, before the model was cut."""

    def order(self, num_lanes: int) -> Sequence[Action]:
        mesh = self._stages.mesh
        return schedule(mesh.schedule, mesh.stages, num_lanes).stages[self._stages.links.stage]

    def spare_s(self, kind: Kind) -> float:
        stage, last = self._stages.links.stage, self._stages.num_stages - 1
        waits = stage > 0 if kind is Kind.FORWARD else stage < last
        return self._stages.clock.spare_s(kind) if waits else 0.0

    def forward(self, lane: int, loss_of: Callable[[], Tensor]) -> None:
        if self._stages.runner is None:
            self._make_whole(lane, loss_of)
        else:
            self._forward(lane, loss_of, self._stages.runner)

    def _make_whole(self, lane: int, loss_of: Callable[[], Tensor]) -> None:
        """Compute the lane that decides the cut: forward and backward on every rank."""
        cutting = self._staged.cutting
        self._whole_lane = lane
        opened = self._staged.begin_lane(lane)
        loss = loss_of()
        cutting.require_call()
        _check(cutting.num_calls_with_gradients, loss, has_loss=True)
        opened.backward(loss, None)
        opened.end()

    def _forward(self, lane: int, loss_of: Callable[[], Tensor], runner: StageRunner) -> None:
        began, setting = time.monotonic(), self._staged.inner.setting
        runner.publishes, self._stages.is_in_lane = False, True
        loss: Tensor | None = None
        setting.precision.enter()
        try:
            loss = loss_of()
        except HandedOver:
            # The next stage computes the rest of the lane's forward.
            pass
        finally:
            setting.precision.leave()
            runner.publishes, self._stages.is_in_lane = True, False
        is_last = self._stages.links.stage == self._stages.num_stages - 1
        _check(len(runner.open_calls), loss, has_loss=is_last)
        [call] = runner.open_calls
        runner.open_calls.clear()
        self._in_flight[lane] = _InFlight(call, loss if is_last else None)
        # After the lane's backward the buffers would be those of a later lane, whose forward comes before it.
        self._staged.inner.take_buffers(lane)
        self._stages.clock.note("F", lane, began)

    def backward_of(self, lane: int) -> None:
        if lane == self._whole_lane:
            return
        began = time.monotonic()
        flying = self._in_flight.pop(lane)
        assert self._stages.runner is not None
        gradients = self._stages.runner.gradients
        opened = self._staged.inner.open_lane(lane, knows_lack=True)
        with gradients.going_back([flying.call]):
            if flying.loss is not None:
                opened.backward(flying.loss, None)
            else:
                _backward_from(flying.call, opened, gradients)
        opened.close(takes_buffers=False)
        flying.call.forget()
        self._stages.clock.note("B", lane, began)

    def end(self, rows: Mapping[str, Any], seen: int) -> PassResult:
        return self._staged.end(rows, seen)

    def abandon(self) -> None:
        self._in_flight.clear()
        self._staged.abandon()


def _backward_from(call: Call, opened: ReplicaLane, gradients: GradientExchange) -> None:
    """Run the backward of what this stage sent."""
    opened.weigh_by_samples()
    back = gradients.get_back(call) if any(call.flags) else []
    pairs = [(t, g) for t, g in zip(call.sent, back, strict=False) if g is not None]
    if pairs:
        opened.run_backward(lambda: torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs]))


def _check(calls: int, loss: Tensor | None, *, has_loss: bool) -> None:
    if calls != 1 or (loss is not None and not has_loss):
        raise UsageError(
            f"The function passed to step.backward called the model {calls} times, but a pipeline needs exactly "
            "one call, with gradients.",
            "Put the whole computation into one forward, or use --strategy model_parallel.",
        )
    if has_loss and not isinstance(loss, Tensor):
        raise UsageError(
            f"The function passed to step.backward returned {type(loss).__name__}, but a pipeline needs a scalar loss.",
            "Return the mean over the lane's samples.",
        )
