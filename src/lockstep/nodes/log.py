"""The log of a run on several nodes: entries of JSON in one order, which every node reads, in a store of torch's.

Nodes put what they tell into one queue; the run's first node takes it out (`order`) and hands it on in batches, which nobody else writes.
So what a node tells costs two requests however many tell something at once, and a node that dies leaves no hole. Reading waits in
the store; nothing polls.
"""

from __future__ import annotations

import datetime as dt
import json
import zlib
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

TOLD, BATCH, SHOWN = "told", "log/{}", "shown/{}"
MOST_BYTES = 1 << 20
"""Of an entry; a failure block with a traceback is a few thousand."""
MOST_UNPACKED_BYTES = 8 << 20
"""Of a batch, which is half of that and one entry at most; also the most that torch's store takes."""


class KeyStore(Protocol):
    """What the log needs of a store. Not `queue_len`: it keeps Python's lock, which this process's tunnel needs (torch 2.13.0)."""

    def get(self, key: str, /) -> bytes: ...
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...
    def set(self, key: str, value: str | bytes, /) -> None: ...
    def check(self, keys: list[str], /) -> bool: ...
    def wait(self, keys: list[str], timeout: dt.timedelta, /) -> None: ...
    def set_timeout(self, timeout: dt.timedelta, /) -> None: ...
    def queue_push(self, key: str, value: str, /) -> None: ...
    def queue_pop(self, key: str, block: bool, /) -> bytes: ...


class RunLog:
    """One node's view of the log.

    Args:
        store: for this object alone; a call that waits holds it.
    """

    def __init__(self, store: KeyStore) -> None:
        self._store = store
        self._batch = 0
        self._ready: deque[dict[str, Any]] = deque()

    def add(self, entry: dict[str, Any]) -> None:
        """Tell all nodes something, after all that this object told before. Returns when the first node's store has it.

        Raises:
            ValueError: when it is too long.
            RuntimeError: when the store is gone.
        """
        text = json.dumps(entry)
        if len(text) > MOST_BYTES:
            raise ValueError(f"an entry of {len(text)} bytes")
        self._store.queue_push(TOLD, text)
        self._store.check([TOLD])  # the store answers this and not the push: a node that ends next has been heard

    def show(self, node: str, told: dict[str, Any]) -> None:
        """Put something beside the log that only counts until the node shows something else. Raises RuntimeError."""
        self._store.set(SHOWN.format(node), json.dumps(told))

    def shown(self, nodes: Sequence[str]) -> list[dict[str, Any]]:
        """What these nodes show, as far as they do. Raises RuntimeError."""
        keys = [SHOWN.format(node) for node in nodes]
        if keys and not self._store.check(keys):
            keys = [key for key in keys if self._store.check([key])]
        return [json.loads(told) for told in self._store.multi_get(keys)] if keys else []

    def next(self, patience: dt.timedelta) -> dict[str, Any]:
        """Wait for the next entry and return it.

        Raises:
            RuntimeError: when none came in time, or the store is gone.
        """
        while not self._ready:
            self._store.set_timeout(patience)
            self._ready.extend(unpacked(self._store.get(BATCH.format(self._batch))))
            self._batch += 1
        return self._ready.popleft()


def packed(entries: Sequence[str]) -> bytes:
    """A batch: what many nodes say of themselves is nearly the same, so it becomes a tenth."""
    return zlib.compress(f"[{','.join(entries)}]".encode(), 1)


def unpacked(batch: bytes) -> list[dict[str, Any]]:
    """The inverse. Raises ValueError where a node of this run wrote something else, however much that would become."""
    reading = zlib.decompressobj()
    try:
        text = reading.decompress(batch, MOST_UNPACKED_BYTES)
    except zlib.error as error:
        raise ValueError(f"no batch: {error}") from error
    if not reading.eof:
        raise ValueError(f"a batch of more than {MOST_UNPACKED_BYTES} bytes, or a part of one")
    entries: list[dict[str, Any]] = json.loads(text)
    return entries
