"""The losses of a pass on GPUs, which stay there until somebody asks: to read one is to wait for all work before it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.protocol.layout.placement import Placement
from lockstep.rank.strategy.late import Late
from lockstep.rank.strategy.replica.lane_table import LaneTable
from lockstep.rank.transport.contract import Transport


class LateLosses:
    """Those of one pass, and whether its lanes did what only a device can know.

    Args:
        device: where the table of all lanes is.
        num_lanes: the run's.
    """

    def __init__(self, device: torch.device, num_lanes: int) -> None:
        self._device, self._num_lanes = device, num_lanes
        self._losses: dict[int, Tensor] = {}
        self._table: LaneTable | None = None

    def add(self, lane: int, loss: Tensor) -> None:
        """Take a lane's loss, a detached scalar."""
        self._losses[lane] = loss

    def begin(self, flags: dict[int, Tensor], transport: Transport, placement: Placement) -> None:
        """Tell the other ranks. Collective: call it on every rank.

        Args:
            flags: by lane, what `finish` returns too; missing ones are 0.
            transport: the ranks.
            placement: lanes on ranks.
        """
        rows = torch.zeros((self._num_lanes, 2), dtype=torch.float64, device=self._device)
        for column, values in enumerate((self._losses, flags)):
            for lane, value in values.items():
                rows[lane, column].copy_(value.reshape(()))
        self._table = LaneTable(rows.view(torch.int64), transport, placement)

    def finish(self, more: Sequence[Tensor]) -> Late:
        """Return the losses by lane, then the flags, then `more` scalars of the same device."""
        if self._table is None:  # one lane, one rank
            (loss,) = self._losses.values()
            return Late(loss.to(self._device, torch.float64).reshape(1))  # a script may compute it on the CPU
        columns = self._table.finish().view(torch.float64).t().reshape(-1)
        return Late(torch.cat([columns, *(one.reshape(1).to(columns) for one in more)]) if more else columns)
