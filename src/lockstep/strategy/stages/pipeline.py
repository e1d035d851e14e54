"""`pipeline`: the stages of a model work on different lanes at the same time; a lane is a micro-batch.

The order of the work is a `layout.schedule`. A lane's forward and backward are apart in time, so the loop needs
`step.backward(loss_of)`: `loss_of` calls the model once, and what follows that call runs on the last stage only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lockstep.errors import UsageError
from lockstep.layout.mesh import Mesh
from lockstep.layout.placement import Placement
from lockstep.layout.schedule import Action, schedule
from lockstep.strategy.contract import Ordered, PassResult
from lockstep.strategy.replica.replica import Replica
from lockstep.strategy.right_form import ORDERED_FORM
from lockstep.strategy.stages.hand_over import Call
from lockstep.strategy.stages.runner import HandedOver
from lockstep.strategy.stages.staged import Staged
from lockstep.transport.contract import Transport


@dataclass
class _InFlight:
    """A lane between its forward and its backward."""

    call: Call
    loss: Tensor | None
    """On the last stage."""


class Pipeline(Staged, Ordered):
    """A replica's model in stages that work at the same time. See `Staged`."""

    def __init__(self, mesh: Mesh, transport: Transport, placement: Placement, device: torch.device) -> None:
        super().__init__(mesh, transport, placement, device)
        self.ordered = self
        self._in_flight: dict[int, _InFlight] = {}
        self._whole_lane: int | None = None
        """The lane of the present pass that was made whole, before the model was cut."""
        self._is_last = self._links.stage == mesh.stages - 1

    def order(self, num_lanes: int) -> Sequence[Action]:
        return schedule(self._mesh.schedule, self._mesh.stages, num_lanes).stages[self._links.stage]

    def begin_lane(self, lane: int) -> None:
        """The lane's forward is next; its gradients have no place before its backward, unless it is made whole."""
        if self._cut is None:
            self._whole_lane = lane
            super().begin_lane(lane)

    def backward(self, loss: Tensor, weight: float | None, *, retain_graph: bool = False) -> None:  # noqa: ARG002 - refused
        raise UsageError(
            f"run.backward was called inside the function that step.backward was given. Return the loss instead:\n{ORDERED_FORM}"
        )

    def forward(self, lane: int, loss_of: Callable[[], Tensor]) -> None:
        if self._runner is None:
            self._make_whole(loss_of)
            return
        began, runner = time.monotonic(), self._runner
        runner.publishes = False
        loss: Tensor | None = None
        try:
            loss = loss_of()
        except HandedOver:
            pass
        finally:
            runner.publishes = True
        self._check(len(runner.open_calls), loss, self._is_last)
        [call] = runner.open_calls
        runner.open_calls.clear()
        self._in_flight[lane] = _InFlight(call, loss if self._is_last else None)
        super()._take_buffers(lane)
        self.clock.note("F", lane, began)

    def _make_whole(self, loss_of: Callable[[], Tensor]) -> None:
        """The lane by which the model is cut: forward and backward on every rank."""
        assert self._first is not None
        loss = loss_of()
        self._require_call()
        self._check(self._first.num_calls_with_gradients, loss, True)
        super().backward(loss, None)

    def _in_lane(self) -> bool:
        return self._runner is not None and not self._runner.publishes

    def _check(self, calls: int, loss: Tensor | None, has_loss: bool) -> None:
        if calls != 1 or (loss is not None and not has_loss):
            raise UsageError(
                f"The function that step.backward was given called the model {calls} times, but a pipeline needs exactly one "
                f"call, with gradients. Put what is computed into one forward, or use --strategy model_parallel."
            )
        if has_loss and not isinstance(loss, Tensor):
            raise UsageError(
                f"The function that step.backward was given returned {type(loss).__name__}, but a pipeline needs a scalar "
                f"loss: the mean over the lane's samples."
            )

    def backward_of(self, lane: int) -> None:
        if lane == self._whole_lane:
            return
        began = time.monotonic()
        flying = self._in_flight.pop(lane)
        Replica.begin_lane(self, lane)
        with self._present_runner().gradients.going_back([flying.call]):
            if flying.loss is not None:
                Replica.backward(self, flying.loss, None)
            else:
                self._backward_from(flying.call)
        Replica.end_lane(self)
        flying.call.forget()
        self.clock.note("B", lane, began)

    def _backward_from(self, call: Call) -> None:
        """Backward of what this stage handed over."""
        lane, current = self._present_lane(), self._present_pass()
        lane.weigh(None, current.cut.weights[lane.number])
        gradients = self._present_runner().gradients.get_back(call) if any(call.flags) else []
        pairs = [(t, g) for t, g in zip(call.handed, gradients, strict=False) if g is not None]
        if pairs:
            self._run_backward(lambda: torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs]))

    def _take_buffers(self, lane: int) -> None:
        """They were taken after the lane's forward; the present ones belong to a later lane's. But not of a whole one."""
        if lane == self._whole_lane:
            super()._take_buffers(lane)

    def end_lane(self) -> None:
        """A lane ends with its backward."""
        if self._lane is not None:
            super().end_lane()

    def end_pass(self, notes: Mapping[int, Any]) -> PassResult:
        self._whole_lane = None
        return super().end_pass(notes)

    def abandon(self) -> None:
        self._in_flight.clear()
        self._whole_lane = None
        super().abandon()
