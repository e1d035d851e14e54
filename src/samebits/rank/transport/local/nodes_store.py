"""The store through which the ranks of a run on several nodes meet: their launcher answers, over a socket that they inherit.

Node 0's launcher holds the keys and answers every question of every rank, so a rank asks once for what all others answer.
"""

from __future__ import annotations

import datetime as dt
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from torch.distributed import DistNetworkError, DistStoreError
from torch.distributed.distributed_c10d import PrefixStore, Store

from samebits.protocol.environment import decode_place
from samebits.protocol.journal.waiting_note import waits
from samebits.protocol.meeting_place import InheritedFile, Seat
from samebits.protocol.message import framed, packed, unpacked
from samebits.rank.transport.local.shared_store import PythonStore, as_bytes, awaited

_LENGTH_BYTES = 4
_given: list[Store] = []
"""All stores that torch has, kept forever: torch keeps no Python object alive."""


def store_of_all_nodes(seat: Seat, patience: dt.timedelta) -> Store:
    """The run's store, with the keys of this start of the ranks only. Raises DistNetworkError in a process that is no rank."""
    place = decode_place(os.environ)
    if place is None or not place.table.is_open():
        raise DistNetworkError("this process has not inherited what the ranks of this run meet through")
    store = NodesStore(place.table)
    store.set_timeout(patience)
    _given.append(store)
    return PrefixStore(f"round {seat.round}", store)


class NodesStore(PythonStore):
    """Keys that node 0's launcher holds. Any thread may use it; each has a socket of its own. Waiting releases the GIL.

    Args:
        bell: takes one end of a new pair of sockets (`samebits.launcher.nodes.meeting`).
    """

    def __init__(self, bell: InheritedFile) -> None:
        super().__init__()
        self._bell = bell
        self._own = threading.local()

    def set(self, key: str, value: str | bytes) -> None:
        self._ask("set", [key], as_bytes(value))

    def get(self, key: str) -> bytes:
        """Read a key, waiting for it. Raises DistStoreError when that takes longer than the store's timeout."""
        return self.multi_get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Read several keys, waiting for them: one question."""
        answer, blob = self._ask("get", keys, patience=self.timeout)  # type: ignore[attr-defined]  # not in torch's stub
        found, at = [], 0
        for size in answer["sizes"]:
            found.append(blob[at : at + size])
            at += size
        return found

    def wait(self, keys: Sequence[str], timeout: dt.timedelta | None = None) -> None:
        """Wait until all keys are there. Raises DistStoreError after `timeout`, by default the store's own."""
        self._ask("wait", keys, patience=self.timeout if timeout is None else timeout)  # type: ignore[attr-defined]

    def add(self, key: str, amount: int) -> int:
        """Add to the number at `key`, 0 if there is none, and return the sum."""
        return int(self._ask("add", [key], amount=amount)[0]["found"])

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Write `desired` if the value is `expected`, or missing and `expected` is empty; return the value then."""
        old, new = as_bytes(expected), as_bytes(desired)
        return self._ask("compare_set", [key], old + new, sizes=[len(old)])[1]

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._ask("check", keys)[0]["found"])

    def delete_key(self, key: str) -> bool:
        return bool(self._ask("delete", [key])[0]["found"])

    def list_keys(self) -> list[str]:
        return [str(key) for key in self._ask("list", [])[0]["found"]]

    def num_keys(self) -> int:
        return len(self.list_keys())

    def append(self, key: str, value: str | bytes) -> None:
        self._ask("append", [key], as_bytes(value))

    def _ask(
        self, do: str, keys: Sequence[str], blob: bytes = b"", patience: dt.timedelta | None = None, **more: Any
    ) -> tuple[dict[str, Any], bytes]:
        end = self._connection()
        limit_s = patience.total_seconds() if patience is not None else None
        try:
            with waits(awaited(keys)) if patience is not None else nullcontext():
                end.settimeout(limit_s)
                end.sendall(framed(packed({"do": do, "keys": [*keys], **more}, blob)))
                size = int.from_bytes(_exactly(end, _LENGTH_BYTES), "big")
                answer, values = unpacked(_exactly(end, size))
        except TimeoutError:
            self._drop(end)
            raise DistStoreError(f"wait timeout after {(limit_s or 0) * 1000:.0f}ms, keys: {', '.join(keys)}") from None
        except OSError as error:
            self._drop(end)
            raise DistNetworkError(f"the launcher, through which the ranks meet, is gone ({error})") from None
        if "why" in answer:
            raise DistStoreError(answer["why"])
        return answer, values

    def _connection(self) -> socket.socket:
        """This thread's own; a new one in a forked child."""
        own: _Connection | None = getattr(self._own, "connection", None)
        if own is None or own.process != os.getpid():
            own = self._own.connection = _Connection(self._bell.number)
        return own.end

    def _drop(self, end: socket.socket) -> None:
        # On this connection an answer may still come, to a request that has timed out.
        self._own.connection = None
        end.close()


class _Connection:
    """One thread's; closed with it."""

    def __init__(self, bell: int) -> None:
        self.process = os.getpid()
        self.end, theirs = socket.socketpair()
        with socket.socket(fileno=os.dup(bell)) as through, theirs:
            socket.send_fds(through, [b"!"], [theirs.fileno()])

    def __del__(self) -> None:
        self.end.close()


def _exactly(end: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        piece = end.recv(min(size - len(received), 1 << 20))
        if not piece:
            raise ConnectionAbortedError("it has ended")
        received += piece
    return bytes(received)


def read_all(store: Store, keys: Sequence[str]) -> list[bytes]:
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
