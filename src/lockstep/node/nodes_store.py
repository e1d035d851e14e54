"""The store through which the ranks of a run on several nodes meet: torch's own, at the end of this node's tunnel."""

from __future__ import annotations

import datetime as dt

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch imports it there for everybody
from torch.distributed.distributed_c10d import PrefixStore, Store

from lockstep.handover.seat import Seat


def store_of_all_nodes(seat: Seat, patience: dt.timedelta) -> Store:
    """A client of the run's store, with the keys of this start of the ranks only. Raises DistError if it is gone."""
    client = TCPStore("127.0.0.1", seat.port, None, False, patience)
    return PrefixStore(f"round {seat.round}", client)
