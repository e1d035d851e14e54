"""The store through which the ranks of a run on several nodes meet: torch's own, at the end of this node's tunnel.

The first node answers every request of every rank, so a rank asks once for what all others told, not once for each.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch imports it there for everybody
from torch.distributed.distributed_c10d import PrefixStore, Store

from lockstep.handover.seat import Seat


def store_of_all_nodes(seat: Seat, patience: dt.timedelta) -> Store:
    """A client of the run's store, with the keys of this start of the ranks only. Raises DistError if it is gone."""
    client = TCPStore("127.0.0.1", seat.port, None, False, patience)
    return PrefixStore(f"round {seat.round}", client)


def told_by_all(store: Store, keys: Sequence[str]) -> list[bytes]:
    """Wait until all keys are there, and read them: two requests, where the store can do that."""
    if store.has_extended_api():  # type: ignore[attr-defined]  # not in torch's stub
        return store.multi_get([*keys])
    return [store.get(key) for key in keys]


ONE_READ = "GLOO_ENABLE_STORE_V2_API"
"""Gloo's switch, which it looks at for each group: a rank reads the addresses of all others with two requests to the store instead
of two for each (Gloo's rendezvous, torch 2.13.0; a store that cannot do that is asked as before)."""


@contextmanager
def gloo_reads_at_once(store: Store, limit: dt.timedelta) -> Iterator[None]:
    """While a group of Gloo is made: it reads all ranks' addresses at once, and waits so long for the last.

    That way of its own waits as long as the store does, not as long as the group; so a script's groups do not take it unless
    the user has set the switch.
    """
    chosen = os.environ.get(ONE_READ)
    before: dt.timedelta = store.timeout  # type: ignore[attr-defined]  # not in torch's stub
    store.set_timeout(limit)
    os.environ.setdefault(ONE_READ, "1")
    try:
        yield
    finally:
        store.set_timeout(before)
        if chosen is None:
            del os.environ[ONE_READ]
