"""The precision of forward passes: autocast around a lane, none around its backward, a scale on its loss.

Autocast keeps the casts of weights until it is left, so it is entered with each lane and left before the next: no lane
sees what another one cast, and a lane's bits do not depend on which lanes ran before it on this rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from samebits.errors import UsageError

INITIAL = 2.0**16
GROWTH_INTERVAL = 2000
SMALLEST, LARGEST = 2.0**-14, 2.0**100
"""Below the first, an overflowing gradient is not the scale's fault; above the second, float32 has little room left."""


@dataclass(frozen=True)
class Scaling:
    """The scale and its history.

    Args:
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
        return {"scale": settled.value, "good_steps": settled.good_steps, "skipped_in_a_row": settled.skipped_in_a_row}

    def load_state_dict(self, state: Mapping[str, float | int]) -> None:
        """Resume from a `state_dict()`, with the same values on every rank.

        Raises:
            UsageError: when it is no such state.
        """
        try:
            value, good, skipped = float(state["scale"]), int(state["good_steps"]), int(state["skipped_in_a_row"])
        except (KeyError, TypeError, ValueError):
            raise UsageError(
                f"The state of the loss scale needs scale, good_steps and skipped_in_a_row, but is {dict(state)}.",
                "Load the state that samebits wrote.",
            ) from None
        if not SMALLEST <= value <= LARGEST or good < 0 or skipped < 0:
            raise UsageError(
                f"A loss scale must be between {SMALLEST} and {LARGEST}, but the state is {dict(state)}.",
                "Load the state that samebits wrote.",
            )
        self._scaling = Scaling(value, good, skipped)
        self._overflows.clear()


DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


class Precision:
    """The effect of `precision=` while lanes are computed. One lane or evaluation batch is inside at a time.

    Args:
        name: "32", "bf16-mixed" or "16-mixed".
        device_type: "cpu" or "cuda".
        scale: on the loss, if any.
    """

    def __init__(self, name: str = "32", device_type: str = "cpu", scale: LossScale | None = None) -> None:
        self.name, self.scale = name, scale
        self._device_type, self._dtype = device_type, DTYPES.get(name)
        self._present: torch.autocast | None = None

    def enter(self) -> None:
        """Begin the lane's forward; what the script calls from here on computes in this precision."""
        # [Note: why casts of weights are dropped before each lane]
        # An autocast of the script around the loop, even a disabled one, would keep them across lanes and even optimizer
        # steps, when they are stale: torch drops them only when the outermost one ends.
        torch.clear_autocast_cache()
        if self._dtype is not None and self._present is None:
            self._present = torch.autocast(self._device_type, dtype=self._dtype)
            self._present.__enter__()  # type: ignore[no-untyped-call]

    def leave(self) -> None:
        """End the lane's forward, however it ended. A second call does nothing."""
        present, self._present = self._present, None
        if present is not None:
            present.__exit__(None, None, None)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Compute what is inside in this precision."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    def backward(self, loss: Tensor, *, retain_graph: bool = False) -> None:
        """Run the scaled loss's backward; gradients are too large by `scale.value`, which `unscale` undoes."""
        scaled = loss if self.scale is None else self.scale.scaled(loss)
        if not torch.is_autocast_enabled(self._device_type):
            scaled.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]
            return
        # As torch advises: a backward takes each operation's dtype from its forward.
        with torch.autocast(self._device_type, enabled=False):
            scaled.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]

    @property
    def unscale(self) -> float:
        """The factor on gradients that undoes the scale, a power of two; exactly 1.0 without a scale."""
        return 1.0 if self.scale is None else 1.0 / self.scale.value
