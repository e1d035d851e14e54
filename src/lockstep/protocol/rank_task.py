"""Everything that a new rank needs to know, as one JSON object in an unnamed file in memory.

The nursery's forked child and a fresh interpreter read the same file, so there is one way of becoming a rank.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class RankTask:
    """What to run, as which rank."""

    rank: int
    script: str
    """The path as the person typed it; empty with `module`."""
    module: str
    args: tuple[str, ...]
    folder: str
    """The working directory."""
    run_folder: str
    variables: Mapping[str, str | None]
    """Environment to set; None removes."""
    calls_init: bool = False
    """Whether the script calls `lockstep.init`, as far as its source shows."""
    parcel: str = ""
    """The path of a function and its arguments, packed by `parcel`, instead of a script."""


def write_task(order: RankTask) -> int:
    """Return a descriptor of a file in memory that holds `order`; the caller closes it."""
    descriptor = os.memfd_create("lockstep-rank-order")
    os.write(descriptor, json.dumps(asdict(order)).encode())
    return descriptor


def read_task(descriptor: int) -> RankTask:
    """Return the order; the descriptor stays open."""
    data = json.loads(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
    return RankTask(**{**data, "args": tuple(data["args"])})


def apply_variables(variables: Mapping[str, str | None]) -> None:
    """Change this process's environment; C libraries see it too."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
