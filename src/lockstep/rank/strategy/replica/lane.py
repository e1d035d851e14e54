"""The lane that is being computed: its weight, what its backward made, and whether the script interfered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from lockstep.errors import UsageError
from lockstep.rank.strategy.replica.gradient_buffers import Slot, SlotPool
from lockstep.rank.strategy.right_form import RIGHT_FORM


class Lane(ABC):
    """One lane between `begin_lane` and `end_lane`. It uses the `grad` of the trainable parameters.

    Args:
        number: the lane's.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.weight: float | None = None
        self.explicit = False
        self.losses: list[Tensor] = []
        self.came_twice = False
        """Whether a parameter is known to have got several gradients, from several backward calls or nested ones."""

    def weigh(self, weight: float | None, by_samples: float) -> None:
        """Set the lane's weight, as a backward call gives it; without `weight=` it is `by_samples`.

        Raises:
            UsageError: when two calls in the lane disagree.
        """
        if self.losses and ((weight is not None) != self.explicit or (self.explicit and weight != self.weight)):
            raise UsageError(
                f"One lane called run.backward with weight={self.weight if self.explicit else None} and "
                f"weight={weight}, but a lane has one weight.",
                "Add the losses up and call run.backward once, or pass the same weight each time.",
            )
        self.explicit = weight is not None
        self.weight = by_samples if weight is None else float(weight)

    def begin_backward(self) -> None:  # noqa: B027 - most have nothing to do
        """Let gradients be what a backward adds to. Call it before each."""

    @abstractmethod
    def backward_finished(self, *, may_lack: bool = False) -> None:
        """Note that whatever is written to the gradients from here on is not ours.

        Args:
            may_lack: whether autograd may have reached parameters with nothing, because a later stage had nothing.

        Raises:
            UsageError: when a gradient that had arrived is gone.
        """

    @abstractmethod
    def take(self, number: int, gradient: Tensor) -> None:
        """Take parameter `number`'s gradient of the whole lane, computed before its place was laid out."""

    @abstractmethod
    def check_untouched(self) -> None:
        """Raise `UsageError` when the script changed or replaced gradients inside the lane."""

    @abstractmethod
    def arrived(self) -> Sequence[bool]:
        """For each parameter, whether a backward reached it."""

    @abstractmethod
    def slot_for_reading(self, pool: SlotPool) -> Slot:
        """Return the lane's gradients as a slot of `pool`, zeros where there are none; valid until the lane ends."""


def gradients_touched() -> UsageError:
    """The error of `Lane.check_untouched`."""
    return UsageError(
        "Gradients were changed inside a step's lanes (zero_grad, clipping or an optimizer step), where they are not "
        "complete yet.",
        f"Do this after the inner loop:\n{RIGHT_FORM}",
    )


def gradient_taken_away() -> UsageError:
    """The error when a gradient that arrived is gone."""
    return UsageError(
        "A hook of the script removed a parameter's gradient during backward, so it cannot be reduced.",
        "Read gradients after the step's lanes.",
    )
