"""Files and folders of others where a state or weights are expected: what they are, and what to do about it."""

from __future__ import annotations

from pathlib import Path

from lockstep.errors import UsageError
from lockstep.machine.regular_file import other_kind
from lockstep.protocol.state_files.manifest import NAME


def of_others(place: Path, name: str) -> UsageError:
    """Why what is at `place` is no state of ours.

    Args:
        place: something that exists.
        name: what to call it.
    """
    if not place.is_dir():
        kind = other_kind(place) or "a file"
        fix = "Use lockstep.load_weights for weights." if kind == "a file" else "Check the path."
        return UsageError(f"{name} is {kind}, not a state that run.save_state wrote.", fix)
    if (problem := of_torch(place, name)) is not None:
        return problem
    if (place / NAME).exists():
        return UsageError(f"{name} has a {NAME} that lockstep did not write.", "Check the path.")
    return UsageError(
        f"{name} is a folder without {NAME}, not a state that run.save_state wrote.",
        "Use lockstep.load_weights for weights.",
    )


def of_torch(folder: Path, name: str) -> UsageError | None:
    """Why a checkpoint of torch.distributed.checkpoint cannot be read; None where it is none."""
    if not (folder / ".metadata").exists() and not any(folder.glob("*.distcp")):
        return None
    return UsageError(
        f"{name} was written by torch.distributed.checkpoint, not by lockstep.",
        "Read it with torch.distributed.checkpoint, or make one file of it with "
        "`python -m torch.distributed.checkpoint.format_utils dcp_to_torch`.",
    )
