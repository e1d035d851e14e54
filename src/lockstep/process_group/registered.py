"""Storages that are exchanged again and again: others read and write them where they are (docs/design/0033).

The compiled part moves their pages into shared memory. It can only do so while the memory is not freed, so a storage
that is registered is kept until nobody else has it.
"""

from __future__ import annotations

from typing import Any, Final

from torch import Tensor, UntypedStorage
from torch.multiprocessing import reductions

from lockstep.node.native import compiled
from lockstep.torch_private import storage_uses

_WeakStorage: Any = reductions.StorageWeakRef

LEAST_BYTES: Final = 256 << 10
"""Below, a copy costs less than looking whether a storage is still where it was."""
USES: Final = 3
"""At this use a storage is registered: what is new in every step never is."""
MOST_KNOWN = 512
"""Storages that are counted at a time."""
SWEEP_EVERY = 64
"""Uses of large tensors between two looks at what nobody else has any more."""


class Registrations:
    """Those of this process."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], tuple[Any, int]] = {}
        """By address and bytes of a tensor: its storage, and how often it was used. Registered ones are not here."""
        self._kept: dict[tuple[int, int], UntypedStorage] = {}
        self._uses = 0

    def note(self, tensor: Tensor) -> None:
        """Say that a plain tensor is about to be exchanged; nobody may write to it before that is over."""
        if (num_bytes := tensor.nbytes) < LEAST_BYTES:
            return
        self._uses += 1
        if self._uses % SWEEP_EVERY == 0:
            self.sweep()
        if (key := (tensor.data_ptr(), num_bytes)) in self._kept:
            return
        storage, uses = self._seen.get(key, (None, 0))
        if storage is None or storage.expired():  # another one may have come to the same place
            if len(self._seen) >= MOST_KNOWN:
                self._seen.clear()
            storage, uses = _WeakStorage(tensor.untyped_storage()), 0
        self._seen[key] = storage, uses + 1
        if uses + 1 == USES and compiled.register_memory(*key):
            self._kept[key] = tensor.untyped_storage()
            del self._seen[key]

    def sweep(self) -> None:
        """Give back what nobody else has."""
        for key, storage in tuple(self._kept.items()):
            if storage_uses(storage._cdata) == 1:  # noqa: SLF001 - as torch's own callers
                compiled.unregister_memory(key[0])
                del self._kept[key]


registrations = Registrations()
"""A tensor may be used in several groups, and is in one place all the same."""
