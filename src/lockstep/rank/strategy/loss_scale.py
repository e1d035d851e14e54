"""The factor on the loss under 16-mixed: small gradients would vanish in float16, large ones overflow.

It is a power of two, so scaling and unscaling change no bit of a float32 gradient. It doubles after `GROWTH_INTERVAL`
steps without an overflow and halves after one, as in `torch.amp.GradScaler`. Every rank holds the same value: only
decisions that are the same on every rank change it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.errors import UsageError

INITIAL = 2.0**16
GROWTH_INTERVAL = 2000
SMALLEST, LARGEST = 2.0**-14, 2.0**100
"""Below the first, an overflowing gradient is not the scale's fault; above the second, float32 has little room left."""


@dataclass(frozen=True)
class Scaling:
    """The scale and its history.

    Args:
        value: the factor.
        good_steps: optimizer updates since it last changed.
        skipped_in_a_row: updates skipped since the last good one.
    """

    value: float = INITIAL
    good_steps: int = 0
    skipped_in_a_row: int = 0

    def after(self, overflow: bool) -> Scaling:
        """Return the scaling after a step whose gradient overflowed or did not."""
        if overflow:
            return Scaling(max(self.value / 2, SMALLEST), 0, self.skipped_in_a_row + 1)
        if self.good_steps + 1 < GROWTH_INTERVAL:
            return Scaling(self.value, self.good_steps + 1, 0)
        return Scaling(min(self.value * 2, LARGEST), 0, 0)


class LossScale:
    """The scale of a run. It changes at the end of a step in which an optimizer stepped or should have."""

    def __init__(self) -> None:
        self._scaling = Scaling()
        self._overflows: list[bool] = []
        """Whether each optimizer update of the current step was skipped."""

    @property
    def value(self) -> float:
        """The factor on every loss of the current step."""
        return self._scaling.value

    @property
    def skipped_in_a_row(self) -> int:
        """The number of steps skipped since the last one that was not."""
        return self._settled().skipped_in_a_row

    def scaled(self, loss: Tensor) -> Tensor:
        """Return the loss times the scale, in float32 or wider, which has room for the product."""
        return loss.to(torch.promote_types(loss.dtype, torch.float32)) * self.value

    def record(self, overflow: bool) -> None:
        """Note an optimizer update of the current step; on overflow it was skipped."""
        self._overflows.append(overflow)

    def settle(self) -> None:
        """End the step; the next one has the new scale. A step changes it once, however many optimizers it has."""
        self._scaling = self._settled()
        self._overflows.clear()

    def _settled(self) -> Scaling:
        return self._scaling.after(any(self._overflows)) if self._overflows else self._scaling

    def state_dict(self) -> dict[str, float | int]:
        """Return what the next step begins with: plain numbers, the same on every rank."""
        settled = self._settled()
        return {
            "scale": settled.value,
            "good_steps": settled.good_steps,
            "skipped_in_a_row": settled.skipped_in_a_row,
        }

    def load_state_dict(self, state: Mapping[str, float | int]) -> None:
        """Go on from a `state_dict()`, with the same values on every rank.

        Raises:
            UsageError: when it is no such state.
        """
        try:
            value, good, skipped = float(state["scale"]), int(state["good_steps"]), int(state["skipped_in_a_row"])
        except (KeyError, TypeError, ValueError):
            raise UsageError(
                f"The state of the loss scale needs scale, good_steps and skipped_in_a_row, but is {dict(state)}.",
                "Load the state that lockstep wrote.",
            ) from None
        if not SMALLEST <= value <= LARGEST or good < 0 or skipped < 0:
            raise UsageError(
                f"A loss scale must be between {SMALLEST} and {LARGEST}, but the state is {dict(state)}.",
                "Load the state that lockstep wrote.",
            )
        self._scaling = Scaling(value, good, skipped)
        self._overflows.clear()
