"""torch.distributed's store in shared memory: what the ranks of one node meet through, without a port or a file.

The table behind it is in C++ (`native/src/table.hpp`); the launcher makes its memory, and every rank inherits it. This is
no server: nobody has to run for the others, and a rank that is killed in the middle of an update does no harm.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from torch.distributed import DistStoreError
from torch.distributed.distributed_c10d import PrefixStore, Store

from lockstep.handover.environment import decode_place
from lockstep.handover.meeting_place import InheritedFile, MeetingPlace
from lockstep.node.native import compiled, why_not
from lockstep.node.trial import trouble_of


class SharedStore(Store):
    """A store over a shared table. Any thread and process may use it at any time; waiting holds no GIL.

    torch calls these methods from C++ too, by these names (`deleteKey` and `getNumKeys` among them), and does not keep the
    Python object alive: whoever gives a SharedStore to torch keeps it as long as torch has it.
    """

    def __init__(self, table: compiled.Table) -> None:
        super().__init__()
        self._table = table

    def set(self, key: str, value: str | bytes) -> None:
        """Write a key. Raises RuntimeError when there is no room."""
        self._table.set(key, _bytes(value))

    def get(self, key: str) -> bytes:
        """The value, waiting for it. Raises DistStoreError when that takes longer than the store's timeout."""
        while (value := self._table.find(key)) is None:
            self.wait([key])
        return value

    def add(self, key: str, amount: int) -> int:
        """Add to the number at `key`, which is 0 where there is none, and return the sum."""
        return self._table.add(key, amount)

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        """Write `desired` if `expected` is there, or nothing is there and `expected` is empty; what is there then."""
        return self._table.compare_set(key, _bytes(expected), _bytes(desired))

    def wait(self, keys: Sequence[str], timeout: dt.timedelta | None = None) -> None:
        """Until all keys are there.

        Raises:
            DistStoreError: after `timeout`, or the store's own one; it names the keys that are not there.
        """
        patience: dt.timedelta = self.timeout if timeout is None else timeout  # type: ignore[attr-defined]
        if not self._table.wait(keys, patience.total_seconds()):
            missing = [key for key in keys if not self._table.has_all([key])]
            raise DistStoreError(
                f"wait timeout after {patience.total_seconds() * 1000:.0f}ms, keys: {', '.join(missing or keys)}"
            )

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there now."""
        return self._table.has_all(keys)

    def deleteKey(self, key: str) -> bool:  # noqa: N802 - torch's name
        """Remove a key; whether it was there."""
        return self._table.remove(key)

    delete_key = deleteKey

    def getNumKeys(self) -> int:  # noqa: N802 - torch's name
        """How many keys there are."""
        return self._table.num_keys()

    num_keys = getNumKeys

    def list_keys(self) -> list[str]:
        """All keys, in no order."""
        return self._table.keys()

    def append(self, key: str, value: str | bytes) -> None:
        """Write `value` behind what is there."""
        self._table.append(key, _bytes(value))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of all keys, waiting for them."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Write several keys."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def has_extended_api(self) -> bool:
        """Whether there are `append`, `multi_get` and `multi_set`."""
        return True

    def clone(self) -> SharedStore:
        """This store: threads may share it."""
        return self


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


_given: list[SharedStore] = []
"""All that were given away, forever: torch keeps no Python object alive."""


def inherited_store(variables: Mapping[str, str] = os.environ) -> SharedStore | None:
    """A store of this process's run, with a timeout of its own; all of them have the same keys.

    None where the launcher gave none, or there is no compiled part to read it. A process that a rank has started has the
    rank's environment, but not its descriptors, and gets None.
    """
    place = _place(variables)
    if place is None:
        return None
    _given.append(SharedStore(_opened(place.table)))
    return _given[-1]


def has_inherited(variables: Mapping[str, str] = os.environ) -> bool:
    """Whether `inherited_store` gives one."""
    return _place(variables) is not None


def _place(variables: Mapping[str, str]) -> MeetingPlace | None:
    place = decode_place(variables)
    usable = place is not None and place.table.is_open() and not why_not() and not store_trouble()
    return place if usable else None


def new_store(num_bytes: int = 1 << 16) -> SharedStore:
    """A store of this process's own."""
    return SharedStore(compiled.Table(compiled.Memory.create(num_bytes, reserve=False)))


@lru_cache
def store_trouble() -> str:
    """What goes wrong when this torch calls a store that is written in Python, tried once; empty when nothing does.

    Then ranks meet through a file of the run, as without the compiled part.
    """
    return trouble_of(_try)


def _try() -> None:
    shared = new_store()
    store: Any = PrefixStore("self-test", shared)  # calls its methods from C++
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
