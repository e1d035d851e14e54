"""The memory in which parameters lie: who gives it, and whether it is this rank's alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.strategy.replica.private_memory import private_zeros


class ParameterMemory:
    """Memory of this rank's own. Others are shared, so each method says who must call it."""

    is_ours = True
    """Whether only this rank's script and the updates of its transport write to it. Where others do at any time, values are
    not compared, buffers are left alone, and the model must keep its form."""

    def allocate(self, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Zeros for parameters to lie in, 1-D. Every rank must call it."""
        return private_zeros(size, dtype, device)

    def master(self, flat: Tensor) -> Tensor:
        """Where an update writes the parameters that lie in `flat`, which `allocate` made: a tensor like it."""
        return flat

    def keep(self, flats: Sequence[Tensor]) -> None:
        """Of what `allocate` made only `flats` hold parameters now. Every rank must call it."""

    def publish(self) -> None:
        """Parameters were put into what `allocate` made, on every rank the same. Every rank must call it."""
