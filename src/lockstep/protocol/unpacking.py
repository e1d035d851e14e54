"""What a parcel is made of, and how a rank opens its parts (see `parcel`). Loads quickly: every nursery has it."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from typing import Any

from lockstep.machine import torch_private


@dataclass(frozen=True)
class Header:
    """The parcel's outside, readable before any of the user's code is imported."""

    path: list[str]
    """sys.path of the caller."""
    argv: list[str]
    main_file: str | None
    """`__file__` of the caller's `__main__`; None in a notebook."""
    sources: dict[str, list[str]]
    """The lines of sources that are in no file."""
    call: bytes
    """(function, args), pickled."""


class PipeEnd:
    """A descriptor of the caller, opened anew where it is unpacked; instead of multiprocessing's own."""

    def __init__(self, place: tuple[str, int]) -> None:
        self._place = place

    def detach(self) -> int:
        """The descriptor."""
        return os.open(*self._place)


def open_storage(path: str, size: int, dtype: Any) -> Any:
    """Open the caller's shared memory as a storage of torch: untyped, or typed with `dtype`."""
    torch = importlib.import_module("torch")
    descriptor = os.open(path, os.O_RDWR)
    try:
        storage = torch_private.open_shared_storage(descriptor, size)  # as torch.multiprocessing does
    finally:
        os.close(descriptor)
    return storage if dtype is None else torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
