"""`pipeline`: the stages of a model work on different lanes at the same time; a lane is a micro-batch.

The order of the work is a `layout.schedule`. A lane's forward and backward are apart in time, so the loop needs
`step.backward(loss_of)`: `loss_of` calls the model once, and what follows that call runs on the last stage only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.errors import UsageError
from lockstep.layout.mesh import Mesh
from lockstep.layout.placement import Placement
from lockstep.layout.schedule import Action, schedule
from lockstep.strategy.contract import Ordered
from lockstep.strategy.replica import Replica
from lockstep.strategy.right_form import ORDERED_FORM
from lockstep.strategy.stage import Call, HandedOver, StageRunner
from lockstep.strategy.staged import Staged
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
        self._is_last = self._links.stage == mesh.stages - 1

    def order(self, num_lanes: int) -> Sequence[Action]:
        return schedule(self._mesh.schedule, self._mesh.stages, num_lanes).stages[self._links.stage]

    def begin_lane(self, lane: int) -> None:
        """The lane's forward is next; its gradients have no place before its backward."""
        if self._cut is None:
            self._first_lane = lane

    def _begin_first_lane(self, _lane: int) -> None:
        self._present_runner().publishes = False

    def backward(self, loss: Tensor, weight: float | None, *, retain_graph: bool = False) -> None:  # noqa: ARG002 - refused
        raise UsageError(
            f"run.backward was called inside the function that step.backward was given. Return the loss instead:\n{ORDERED_FORM}"
        )

    def forward(self, lane: int, loss_of: Callable[[], Tensor]) -> None:
        began = time.monotonic()
        if self._runner is not None:
            self._runner.publishes = False
        loss: Tensor | None = None
        try:
            loss = loss_of()
        except HandedOver:
            pass
        finally:
            if self._runner is not None:
                self._runner.publishes = True
        runner = self._present_runner()
        self._check(runner, loss)
        [call] = runner.open_calls
        runner.open_calls.clear()
        self._in_flight[lane] = _InFlight(call, loss if self._is_last else None)
        super()._take_buffers(lane)
        self.clock.note("F", lane, began)

    def _in_lane(self) -> bool:
        return self._runner is not None and not self._runner.publishes

    def _check(self, runner: StageRunner, loss: Tensor | None) -> None:
        calls = len(runner.open_calls)
        if calls != 1 or (loss is not None and not self._is_last):
            raise UsageError(
                f"The function that step.backward was given called the model {calls} times, but a pipeline needs exactly one "
                f"call, with gradients. Put what is computed into one forward, or use --strategy model_parallel."
            )
        if self._is_last and not isinstance(loss, Tensor):
            raise UsageError(
                f"The function that step.backward was given returned {type(loss).__name__}, but a pipeline needs a scalar "
                f"loss: the mean over the lane's samples."
            )

    def backward_of(self, lane: int) -> None:
        began = time.monotonic()
        flying = self._in_flight.pop(lane)
        Replica.begin_lane(self, lane)
        with self._present_runner().going_back([flying.call]):
            if flying.loss is not None:
                Replica.backward(self, flying.loss, None)
            else:
                self._backward_from(flying.call)
        Replica.end_lane(self)
        self.clock.note("B", lane, began)

    def _backward_from(self, call: Call) -> None:
        """Backward of what this stage handed over."""
        lane, current = self._present_lane(), self._present_pass()
        lane.weigh(None, current.cut.weights[lane.number])
        gradients = self._present_runner().get_back(call) if any(call.flags) else []
        pairs = [(t, g) for t, g in zip(call.handed, gradients, strict=False) if g is not None]
        if pairs:
            self._run_backward(lambda: torch.autograd.backward([t for t, _ in pairs], [g for _, g in pairs]))

    def _take_buffers(self, lane: int) -> None:
        """They were taken after the lane's forward; the present ones belong to a later lane's."""

    def end_lane(self) -> None:
        """A lane ends with its backward."""
        self._first_lane = None

    def abandon(self) -> None:
        self._in_flight.clear()
        super().abandon()
