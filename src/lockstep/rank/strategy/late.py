"""Numbers that a GPU will have computed: they are copied to the host behind its other work, and read when somebody asks."""

from __future__ import annotations

import torch
from torch import Tensor


class Late:
    """Some float64 values of a device.

    Args:
        values: 1-D, on a GPU; whatever its current stream does to them later is not seen.
    """

    def __init__(self, values: Tensor) -> None:
        self._values = torch.empty(values.shape, dtype=torch.float64, device="cpu", pin_memory=True)
        self._values.copy_(values, non_blocking=True)
        self._copied: torch.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._copied.record(torch.cuda.current_stream(values.device))

    def is_there(self) -> bool:
        """Whether `read` need not wait."""
        return self._copied.query()

    def read(self) -> list[float]:
        """Wait for the values, and return them."""
        if not self._copied.query():
            self._copied.synchronize()
        numbers: list[float] = self._values.tolist()
        return numbers
