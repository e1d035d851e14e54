"""A row of whole numbers for each lane, on GPUs: ranks fill the rows of their lanes, and get all others unread.

Nobody waits for it, as for a frame: the numbers stay on the devices. They are bits of whatever they stand for, and every
row is zeros but on one rank, so their sum is exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lockstep.protocol.layout.placement import Placement
from lockstep.rank.transport.contract import Pending, Transport


class LaneTable:
    """One exchange.

    Args:
        rows: int64, (lanes, numbers); zeros in the rows of other ranks' lanes.
        transport: the ranks.
        placement: lanes on ranks.

    Construct it on every rank; that begins it.
    """

    def __init__(self, rows: Tensor, transport: Transport, placement: Placement) -> None:
        self._all = rows
        self._pending: Pending | None = None
        if transport.world_size == 1:
            return
        num_partials = len(placement.subtrees(transport.rank))
        partials = [rows.view(-1), *(torch.zeros_like(rows).view(-1) for _ in range(1, num_partials))]
        self._all = torch.empty_like(rows)
        self._pending = transport.begin_all_reduce(partials[:num_partials], placement, self._all.view(-1))

    def finish(self) -> Tensor:
        """Return the rows of all lanes. Work that is queued from here on comes after the exchange."""
        if self._pending is not None:
            self._pending.advance()
            self._pending.finish()
            self._pending = None
        return self._all
