"""Snapshots: states that a run keeps in shared memory, for a restart of its ranks by the same launcher.

The launcher makes the folder before the first rank begins, and removes it when the run is over. Ranks write states into
it in the format of those on a disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import UsageError
from lockstep.protocol.states import newest_step
from lockstep.protocol.steps import parse_steps

KEPT = "lockstep-kept-{}-{}"
"""The folder's name in shared memory, by the launcher's process and a number; its launcher holds a lock on it."""


@dataclass(frozen=True)
class Keeping:
    """How often a run keeps a snapshot."""

    is_on: bool = True
    steps: int = 0
    """Every so many steps; 0: as often as costs one hundredth of the time."""

    @classmethod
    def parse(cls, text: str) -> Keeping:
        """Read `auto`, `off` or `20steps`.

        Raises:
            UsageError: for anything else.
        """
        if text in ("auto", "off"):
            return cls(is_on=text == "auto")
        if steps := parse_steps(text):
            return cls(steps=steps)
        raise UsageError(f"--snapshots {text!r} cannot be read.", "Write auto, off or 20steps.")


@dataclass(frozen=True)
class SnapshotPlace:
    """Where the ranks of one run keep their snapshots."""

    folder: str
    """An absolute path in shared memory."""
    steps: int = 0
    """As in `Keeping`."""


def kept_in(folder: Path, number: int) -> Path:
    """Where the `number`-th run of a script (`lockstep.init`) keeps its snapshots."""
    return folder / f"run-{number}"


def newest_kept(folder: Path) -> int | None:
    """The step of the newest snapshot of the last run below `folder`, by its name; None where there is none."""
    number = 1
    while kept_in(folder, number + 1).is_dir():
        number += 1
    return newest_step(kept_in(folder, number))
