"""How the launcher tells ranks that are left about the ranks that take the place of dead ones: a file in the run folder.

A *generation* is the ranks of a run between two replacements, counted from 0. The launcher is the only writer, and ranks
read it only while they have lost somebody.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from lockstep.handover.run_folder import write_private
from lockstep.regular_file import read_regular

RESCUE = "lockstep-rescue-{}-{}"
"""A folder in shared memory, by the launcher's process and the generation: what a replacement takes over."""


@dataclass(frozen=True)
class Generation:
    """One generation."""

    number: int
    writer: int
    """The rank that leaves in `folder` what the replacements need."""
    folder: str
    lost: tuple[int, ...] = ()
    """The ranks that are replaced."""

    def write(self, path: Path) -> None:
        """Tell it. Raises OSError."""
        write_private(path, json.dumps(asdict(self)))


def read_generation(path: Path) -> Generation | None:
    """The current generation, or None while nobody was replaced."""
    with suppress(OSError):
        return Generation(**json.loads(read_regular(path)))
    return None
