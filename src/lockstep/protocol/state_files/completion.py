"""The last files of a state, and the moment in which it becomes one. Plain Python."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.errors import EnvironmentFailure
from lockstep.machine.clocks import growing_time
from lockstep.protocol.state_files.flushed import write_synced
from lockstep.protocol.state_files.folder import StateFolder
from lockstep.protocol.state_files.manifest import DOCUMENTS, NAME, NOT_FINITE, Manifest, SavedFile


def complete(
    folder: StateFolder,
    documents: Mapping[str, Any],
    files: Mapping[str, SavedFile],
    facts: Mapping[str, Any],
    taken_s: float | None = None,
    *,
    not_finite: str = "",
) -> None:
    """Write state.json and the manifest into the stage, which holds all other files, and put it in place.

    Args:
        folder: it has begun.
        documents: the content of state.json.
        files: those that are in the stage, flushed to the disk.
        facts: what the manifest says besides its files; the step separates lines of metrics.jsonl from the state.
        taken_s: growing_time() when the run was as the state is, if that is not now. The manifest gets this time.
        not_finite: a tensor that should be finite and is not.

    Raises:
        OSError: when there is no room.
        EnvironmentFailure: when somebody has changed what is there.
    """
    facts = {**facts, NOT_FINITE: not_finite} if not_finite else facts
    text = json.dumps(documents, allow_nan=False, indent=1).encode()
    write_synced(folder.stage / DOCUMENTS, text)
    write_synced(folder.stage / NAME, Manifest({**files, DOCUMENTS: SavedFile.of(text)}, facts).encode())
    # [Note: why the manifest's time is set]
    # Lines of metrics.jsonl are compared with it. The kernel's stamp is that of its last tick, up to 10 ms before.
    if taken_s is None:
        taken_s = growing_time(facts.get("step", 0))
    os.utime(folder.stage / NAME, (taken_s, taken_s))
    folder.install()


def not_written(target: Path, problem: str) -> EnvironmentFailure:
    """The error for a state that could not be written."""
    return EnvironmentFailure(f"The state could not be written to {target}: {problem.rstrip('.')}.")
