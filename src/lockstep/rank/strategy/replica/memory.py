"""The memory for parameters: where it comes from, and whether it is this rank's alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.rank.strategy.replica.private_memory import private_zeros


class ParameterMemory:
    """Memory of this rank's own. Other kinds are shared, so each method says who must call it."""

    is_ours = True
    """Whether only this rank's script and its transport's updates write to it. If others may at any time, values are
    not compared, buffers are left alone, and the model must keep its form."""

    def allocate(self, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Make 1-D zeros to hold parameters. Collective: call it on every rank."""
        return private_zeros(size, dtype, device)

    def master(self, flat: Tensor) -> Tensor:
        """Where an update writes the parameters in `flat`, which `allocate` made: a tensor like it."""
        return flat

    def keep(self, flats: Sequence[Tensor]) -> None:
        """Keep only `flats` of what `allocate` made, as they hold parameters. Collective: call it on every rank."""

    def publish(self) -> None:
        """Publish equal parameters, put into what `allocate` made. Collective: call it on every rank."""
