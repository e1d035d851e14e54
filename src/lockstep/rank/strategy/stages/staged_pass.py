"""A pass through stages lane by lane: one stage works at a time, as in the graph of one device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lockstep.rank.strategy.contract import OpenLane, Pass, PassResult
from lockstep.rank.strategy.replica.lane_pass import LanePass, ReplicaLane
from lockstep.rank.strategy.stages.contract import Stages
from lockstep.rank.strategy.stages.cut_at_first_call import CutAtFirstCall


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

    def end(self, notes: Mapping[int, Any], seen: int) -> PassResult:
        if not self.cutting.is_done:
            self.inner = self.cutting.behind_pass(self.inner)
        result = self.inner.end(notes, seen)
        self.stages.end_pass()
        return result

    def abandon(self) -> None:
        self.inner.abandon()
        self.forget_lane()

    def forget_lane(self) -> None:
        """Forget the open lane."""
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
