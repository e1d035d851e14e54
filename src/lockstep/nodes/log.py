"""The log of a run on several nodes: entries of JSON in one order, which every node reads, in a store of torch's.

An entry is added by compare-and-set at the first free number, so two nodes never take the same one, and one that dies in
between leaves no hole. Reading waits in the store; nothing polls.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from typing import Any, Protocol

ENTRY, SHOWN = "log/{}", "shown/{}"
MOST_BYTES = 1 << 20
"""Of an entry; a failure block with a traceback is a few thousand."""


class KeyStore(Protocol):
    """What the log needs of a store."""

    def get(self, key: str) -> bytes: ...
    def set(self, key: str, value: str) -> None: ...
    def check(self, keys: list[str]) -> bool: ...
    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...
    def wait(self, keys: list[str], timeout: dt.timedelta) -> None: ...


class RunLog:
    """One node's view of the log.

    Args:
        store: for this object alone; a call that waits holds it.
        writer: a word that no other writer has: two that write the same must not take one entry for their own.
    """

    def __init__(self, store: KeyStore, writer: str = "") -> None:
        self._store, self._writer = store, writer
        self._next = self._written = 0

    @property
    def num_read(self) -> int:
        """How many entries this object has read or passed."""
        return self._next

    def add(self, entry: dict[str, Any], behind: int = 0) -> int:
        """Write an entry behind all others, and return its number.

        Args:
            entry: what to write.
            behind: how many entries there are at least: trying begins there.

        Raises:
            ValueError: when it is too long.
            RuntimeError: when the store is gone.
        """
        self._written += 1
        self._next = max(self._next, behind)
        text = json.dumps({**entry, "by": [self._writer, self._written]})
        if len(text) > MOST_BYTES:
            raise ValueError(f"an entry of {len(text)} bytes")
        number = self._next
        while self._store.compare_set(ENTRY.format(number), "", text) != text.encode():
            number += 1
        self._next = number + 1
        return number

    def show(self, node: str, told: dict[str, Any]) -> None:
        """Put something beside the log that only counts until the node shows something else. Raises RuntimeError."""
        self._store.set(SHOWN.format(node), json.dumps(told))

    def shown(self, nodes: Sequence[str]) -> list[dict[str, Any]]:
        """What these nodes show, as far as they do. Raises RuntimeError."""
        keys = [key for node in nodes if self._store.check([key := SHOWN.format(node)])]
        return [json.loads(self._store.get(key)) for key in keys]

    def next(self, patience: dt.timedelta) -> dict[str, Any]:
        """Wait for the next entry and return it.

        Raises:
            RuntimeError: when none came in time, or the store is gone.
        """
        key = ENTRY.format(self._next)
        self._store.wait([key], patience)
        entry: dict[str, Any] = json.loads(self._store.get(key))
        self._next += 1
        return entry
