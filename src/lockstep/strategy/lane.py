"""The lane that is being computed: where its gradients go, what it weighs, whether somebody interfered."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lockstep.errors import UsageError
from lockstep.strategy.gradients import COPIED_BYTES, Slot, SlotPool
from lockstep.strategy.right_form import RIGHT_FORM


class Lane:
    """One lane between `begin_lane` and `end_lane`.

    Args:
        number: which lane.
        pool: where the slot comes from; its parameters' `grad` is used until the lane ends.
    """

    def __init__(self, number: int, pool: SlotPool) -> None:
        self.number = number
        self.slot: Slot = pool.take_unfilled()
        self._parameters: Sequence[nn.Parameter] = pool.parameters
        self._copied = [view.nbytes >= COPIED_BYTES for view in self.slot.views]
        self._flat_of = [segment.flat for segment in pool.segments]
        self.arrived = [False] * len(self._parameters)
        self.weight: float | None = None
        self.explicit = False
        self.losses: list[Tensor] = []
        for parameter, view, is_copied in zip(self._parameters, self.slot.views, self._copied, strict=True):
            parameter.grad = None if is_copied else view
        self._versions = self.slot.versions()
        self._seen = self.slot.versions()

    def gradient_arrived(self, number: int, *, may_lack: bool = False) -> bool:
        """Parameter `number` has a new gradient. A large first one moves into its place, as if added to zeros there.

        Args:
            number: of the parameter.
            may_lack: whether autograd may have come to the parameter with nothing, because a later stage had nothing.

        Returns:
            Whether there is one.
        """
        parameter, view, flat = self._parameters[number], self.slot.views[number], self._flat_of[number]
        if may_lack and (
            parameter.grad is None or (parameter.grad is view and view._version == self._seen[flat])  # noqa: SLF001
        ):
            return False
        if self._copied[number] and not self.arrived[number]:
            gradient = parameter.grad
            if gradient is None:
                raise UsageError(
                    "A hook of the script took a parameter's gradient away during backward, so it cannot be reduced. "
                    "Look at gradients after the step's lanes."
                )
            if gradient.layout is torch.strided:
                torch.add(gradient, 0, out=view)
            else:
                view.zero_().add_(gradient)
            parameter.grad = view
        self.arrived[number] = True
        self._seen[flat] = view._version  # noqa: SLF001 - moves when anything in the flat is written to
        return True

    def weigh(self, weight: float | None, by_samples: float) -> None:
        """The lane's weight, said by a backward call; `by_samples` is what it is without `weight=`.

        Raises:
            UsageError: when two calls in the lane disagree.
        """
        if self.losses and ((weight is not None) != self.explicit or (self.explicit and weight != self.weight)):
            raise UsageError(
                f"One lane called run.backward with weight={self.weight if self.explicit else None} and "
                f"weight={weight}, but a lane has one weight. Add the losses up and call run.backward once, or pass "
                f"the same weight each time."
            )
        self.explicit = weight is not None
        self.weight = by_samples if weight is None else float(weight)

    def backward_finished(self) -> None:
        """What is written to the gradients from here on is not ours."""
        self._versions = self.slot.versions()

    def check_untouched(self) -> None:
        """Raise `UsageError` when the script changed or replaced gradients inside the lane."""
        same = all(
            parameter.grad is (view if arrived or not is_copied else None)
            for parameter, view, arrived, is_copied in zip(
                self._parameters, self.slot.views, self.arrived, self._copied, strict=True
            )
        )
        if not same or self._versions != self.slot.versions():
            raise UsageError(
                "Gradients were changed inside a step's lanes (zero_grad, clipping or an optimizer step), where they "
                f"are not complete yet. Do this after the inner loop:\n{RIGHT_FORM}"
            )

    def fill(self) -> None:
        """Large parameters that got no gradient count as zeros."""
        for view, arrived, is_copied in zip(self.slot.views, self.arrived, self._copied, strict=True):
            if is_copied and not arrived:
                view.zero_()
