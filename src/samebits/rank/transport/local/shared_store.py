"""A torch.distributed store in shared memory, through which the ranks of one node meet without a port or a file.

The table behind it is in C++ (`native/src/table.hpp`); the launcher makes its memory, and every rank inherits it. There
is no server: no process has to run for the others, and a rank that is killed in the middle of an update does no harm.
"""

from __future__ import annotations

import datetime as dt
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Self

from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import PrefixStore, Store

from samebits.protocol.environment import decode_place
from samebits.protocol.journal.waiting_note import waits
from samebits.protocol.meeting_place import InheritedFile, MeetingPlace
from samebits.rank.transport.local.native import compiled, trouble_of, why_not


class PythonStore(Store):
    """What stores in Python have in common, and torch's other names for their methods.

    torch also calls the methods from C++, by these names, and does not keep the Python object alive: the caller that gives
    a store to torch must keep it as long as torch has it.
    """

    @abstractmethod
    def delete_key(self, key: str) -> bool:
        """Remove a key, and return whether it was there."""

    def deleteKey(self, key: str) -> bool:  # noqa: N802 - torch's name
        return self.delete_key(key)

    @abstractmethod
    def num_keys(self) -> int:
        """The number of keys."""

    def getNumKeys(self) -> int:  # noqa: N802 - torch's name
        return self.num_keys()

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)  # type: ignore[arg-type]  # these stores take both

    def has_extended_api(self) -> bool:
        """Whether the store has `append`, `multi_get` and `multi_set`."""
        return True

    def clone(self) -> Self:
        """Return this store: threads may share it."""
        return self


class SharedStore(PythonStore):
    """A store over a shared table. Any thread and process may use it at any time; waiting releases the GIL."""

    def __init__(self, table: compiled.Table) -> None:
        super().__init__()
        self._table = table

    def set(self, key: str, value: str | bytes) -> None:
        """Write a key. Raises RuntimeError when there is no room."""
        self._table.set(key, as_bytes(value))

    def get(self, key: str) -> bytes:
        """Read a key, waiting for it. Raises DistStoreError when that takes longer than the store's timeout."""
        while (value := self._table.find(key)) is None:
            self.wait([key])
        return value

    def add(self, key: str, amount: int) -> int:
        """Add to the number at `key`, 0 if there is none, and return the sum."""
        return self._table.add(key, amount)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Write `desired` if the value is `expected`, or missing and `expected` is empty; return the value then."""
        return self._table.compare_set(key, as_bytes(expected), as_bytes(desired))

    def wait(self, keys: Sequence[str], timeout: dt.timedelta | None = None) -> None:
        """Wait until all keys are there.

        Raises:
            DistStoreError: after `timeout`, by default the store's own; it names the missing keys.
        """
        patience: dt.timedelta = self.timeout if timeout is None else timeout  # type: ignore[attr-defined]
        with waits(awaited(keys)):
            are_there = self._table.wait(keys, patience.total_seconds())
        if not are_there:
            missing = [key for key in keys if not self._table.has_all([key])]
            raise DistStoreError(
                f"wait timeout after {patience.total_seconds() * 1000:.0f}ms, keys: {', '.join(missing or keys)}"
            )

    def check(self, keys: Sequence[str]) -> bool:
        return self._table.has_all(keys)

    def delete_key(self, key: str) -> bool:
        return self._table.remove(key)

    def num_keys(self) -> int:
        return self._table.num_keys()

    def list_keys(self) -> list[str]:
        return self._table.keys()

    def append(self, key: str, value: str | bytes) -> None:
        self._table.append(key, as_bytes(value))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Read several keys, waiting for them."""
        if (values := self._table.find_all(keys)) is not None:
            return values
        return [self.get(key) for key in keys]


def as_bytes(value: str | bytes) -> bytes:
    """A value as torch passes it, which may be text."""
    return value.encode() if isinstance(value, str) else value


_given: list[SharedStore] = []
"""All stores that torch has, kept forever: torch keeps no Python object alive."""


def inherited_store(variables: Mapping[str, str] = os.environ) -> SharedStore | None:
    """Return a store of this process's run, with its own timeout; all of them have the same keys.

    None if the launcher gave none, or there is no compiled part to read it. A process that a rank has started has the
    rank's environment but not its descriptors, and gets None.
    """
    place = _place(variables)
    if place is None:
        return None
    _given.append(SharedStore(_opened(place.table)))
    return _given[-1]


def has_inherited(variables: Mapping[str, str] = os.environ) -> bool:
    return _place(variables) is not None


def _place(variables: Mapping[str, str]) -> MeetingPlace | None:
    place = decode_place(variables)
    usable = place is not None and place.table.is_open() and not why_not() and not store_trouble()
    return place if usable else None


def new_store(num_bytes: int = 1 << 16) -> SharedStore:
    """Make a store of this process's own."""
    return SharedStore(compiled.Table(compiled.Memory.create(num_bytes, reserve=False)))


@lru_cache
def store_trouble() -> str:
    """What goes wrong when this torch calls a store written in Python, tried once; empty if nothing does.

    Then ranks meet through a file of the run, as without the compiled part.
    """
    return trouble_of(_try)


def _try() -> None:
    shared = new_store()
    # Calls its methods from C++.
    store: Any = PrefixStore("self-test", shared)
    store.set("word", "one")
    seen = [store.get("word"), store.add("number", 2), store.compare_set("word", "one", "two"), store.check(["word"])]
    store.wait(["word", "number"], dt.timedelta(seconds=1))
    store.multi_set(["left", "right"], ["l", "r"])
    seen += [store.multi_get(["left", "right"]), store.delete_key("word"), store.check(["word"])]
    if seen != [b"one", 2, b"two", True, [b"l", b"r"], True, False]:
        raise RuntimeError(f"a store gave {seen}")


@lru_cache
def _opened(table: InheritedFile) -> compiled.Table:
    return compiled.Table(compiled.Memory.adopt(os.dup(table.number)))


def awaited(keys: Sequence[str]) -> str:
    """What a rank waits for, for people: torch's own keys, `0//cpu//0/1`, mean the others' addresses."""
    if any("//" in key for key in keys):
        return "init_process_group or new_group"
    return f"the store's {', '.join(keys)}"
