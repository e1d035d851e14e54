"""The order of a run's log: made by the run's first node alone, out of what all nodes told.

It could not be made without that node before either: the store is there. Whatever has come while the others read goes into one
batch, so their requests grow with the nodes, not with nodes x entries.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Callable
from typing import Any

from lockstep.nodes.log import BATCH, TOLD, KeyStore, packed

PAUSE_PER_NODE_S = 0.0005
"""Between two batches, for each node that reads them: its two requests take the first node's link a third of that."""
LONGEST_PAUSE_S = 2.0
"""However many they are: the first node stays for 8 s where others have not heard yet how the run ends (`link.LINGER_S`)."""
MOST_BATCH_BYTES = 4 << 20
"""Of a batch's entries together, beside the last one."""


def pause_s(readers: int) -> float:
    """How long after a batch the next one may follow, with so many nodes that read both."""
    return min(PAUSE_PER_NODE_S * readers, LONGEST_PAUSE_S)


class LogOrder:
    """Puts what nodes told into the log.

    Args:
        store: for this object alone.
        readers: how many other nodes read the log now.
        now: the time in seconds.
        sleep: waits so many seconds.
    """

    def __init__(
        self,
        store: KeyStore,
        readers: Callable[[], int],
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store, self._readers, self._now, self._sleep = store, readers, now, sleep
        self._num_batches = 0
        self._not_before = 0.0

    def next(self, patience: dt.timedelta) -> list[dict[str, Any]]:
        """Wait until somebody told something, put all that was told into the log, and return it.

        Raises:
            RuntimeError: when nothing came in time, or the store is gone.
        """
        self._store.wait([TOLD], patience)
        self._sleep(max(0.0, self._not_before - self._now()))
        told = self._take()
        if not told:
            return []
        self._store.set(BATCH.format(self._num_batches), packed(told))
        self._num_batches += 1
        self._not_before = self._now() + pause_s(self._readers())
        return [json.loads(entry) for entry in told]

    def _take(self) -> list[str]:
        """What is in the queue now, or as much of it as goes into one batch."""
        told: list[str] = []
        num_bytes = 0
        while num_bytes < MOST_BATCH_BYTES and self._store.check([TOLD]):
            told.append(self._store.queue_pop(TOLD, False).decode())
            num_bytes += len(told[-1])
        return told
