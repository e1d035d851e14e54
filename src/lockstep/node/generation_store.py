"""The store through which the ranks of one generation meet: part of the run's, and given up with the generation."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable

from lockstep.errors import PeerLost
from lockstep.node.hearing import Store
from lockstep.node.meeting import PATIENCE

LONGEST_PAUSE_S = 0.02


class GenerationStore:
    """What `meet` needs from a store.

    Args:
        store: the run's.
        prefix: what its keys begin with.
        is_over: whether there is a later generation, so that some of this one's ranks will not come.
    """

    def __init__(self, store: Store, prefix: str, is_over: Callable[[], bool]) -> None:
        self._store, self._prefix, self._is_over = store, prefix, is_over
        self.timeout: dt.timedelta = PATIENCE

    def set(self, key: str, value: str) -> None:
        """Write a key."""
        self._store.set(f"{self._prefix}/{key}", value)

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return self._store.check([f"{self._prefix}/{key}" for key in keys])

    def multi_get(self, keys: list[str]) -> list[bytes]:
        """Read several keys that are there."""
        return self._store.multi_get([f"{self._prefix}/{key}" for key in keys])

    def get(self, key: str) -> bytes:
        """Read a key, waiting for it.

        Raises:
            PeerLost: when the generation is over.
        """
        pause_s = 0.0005
        while not self.check([key]):
            if self._is_over():
                raise PeerLost("Another rank ended while the ranks met again.", is_dead=True)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return self._store.get(f"{self._prefix}/{key}")
