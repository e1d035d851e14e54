"""Everything that a new rank needs to know: its task, as one JSON object in an unnamed file in memory, and how it opens a parcel.

The nursery's forked child and a fresh interpreter read the same file, so there is one way of becoming a rank.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from samebits.machine import torch_private
from samebits.protocol.records import plain, restored


@dataclass(frozen=True)
class RankTask:
    """What to run, as which rank."""

    rank: int
    script: str
    """The path as the user typed it; empty with `module`."""
    module: str
    args: tuple[str, ...]
    folder: str
    run_folder: str
    variables: Mapping[str, str | None]
    """Environment to set; None removes."""
    calls_init: bool = False
    """Whether the script calls `samebits.init`, as far as its source shows."""
    parcel: str = ""
    """The path of a function and its arguments, packed by `parcel`, instead of a script."""


def write_task(order: RankTask) -> int:
    """Return a descriptor of a file in memory that holds `order`; the caller closes it."""
    descriptor = os.memfd_create("samebits-rank-order")
    os.write(descriptor, json.dumps(plain(order)).encode())
    return descriptor


def read_task(descriptor: int) -> RankTask:
    """Return the order; the descriptor stays open."""
    return restored(RankTask, json.loads(os.pread(descriptor, os.fstat(descriptor).st_size, 0)))


def apply_variables(variables: Mapping[str, str | None]) -> None:
    """Change this process's environment; C libraries see it too."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


# What a parcel is made of (`samebits.launcher.spawn.parcel`), instead of a script


@dataclass(frozen=True)
class Header:
    """The parcel's outside, readable before any of the user's code is imported."""

    path: list[str]
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
        return os.open(*self._place)


def open_storage(path: str, size: int, dtype: Any) -> Any:
    """Open the caller's shared memory as a storage of torch: untyped, or typed with `dtype`."""
    torch = importlib.import_module("torch")
    descriptor = os.open(path, os.O_RDWR)
    try:
        # The same call as torch.multiprocessing's, so that tensors are shared and not copied.
        storage = torch_private.open_shared_storage(descriptor, size)
    finally:
        os.close(descriptor)
    return storage if dtype is None else torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)
