"""The precision of forward passes: autocast around a lane, none around its backward, a scale on its loss.

Autocast keeps the casts of weights until it is left, so it is entered with each lane and left before the next: no lane
sees what another one cast, and a lane's bits do not depend on which lanes ran before it on this rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from lockstep.rank.strategy.loss_scale import LossScale

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
        # An autocast of the script around the loop, even a disabled one, would keep the casts of weights across lanes
        # and even optimizer steps, when they are stale: torch drops them only when the outermost one ends.
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

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Turn autocast off inside, as torch advises for backward: it takes each operation's dtype from its forward."""
        if not torch.is_autocast_enabled(self._device_type):
            yield
            return
        with torch.autocast(self._device_type, enabled=False):
            yield

    def backward(self, loss: Tensor, *, retain_graph: bool = False) -> None:
        """Run the scaled loss's backward; gradients are too large by `scale.value`, which `unscale` undoes."""
        with self.outside():
            scaled = loss if self.scale is None else self.scale.scaled(loss)
            scaled.backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]

    @property
    def unscale(self) -> float:
        """The factor on gradients that undoes the scale, a power of two; exactly 1.0 without a scale."""
        return 1.0 if self.scale is None else 1.0 / self.scale.value
