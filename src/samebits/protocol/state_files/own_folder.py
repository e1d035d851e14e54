"""Folders and files where a state is expected: those that samebits made and may replace, and those of others, with what to do about them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from pathlib import Path

from samebits.errors import UsageError
from samebits.machine.regular_file import is_regular, other_kind, read_regular
from samebits.protocol.state_files.flushed import sync, write_synced
from samebits.protocol.state_files.manifest import FORMAT, MOST_BYTES, NAME, Manifest, is_manifest

MARK = "saving.json"
"""The first file of a stage, and the last to go before it becomes a state."""
_MARKED = json.dumps({"format": FORMAT}).encode()
_SUFFIXES = (".json", ".safetensors")
"""What samebits calls the files of a state."""
NAMES = re.compile(r"(manifest|state|saving)\.json|(state|gradients|(model|optimizer)\d*)\.safetensors")


def is_ours(folder: Path) -> bool:
    """Whether samebits made this folder, and nobody has put anything into it.

    Raises:
        FileNotFoundError: when it, or a file in it, was removed while it was looked at.
        OSError: when it cannot be looked at.
    """
    if not stat.S_ISDIR(os.lstat(folder).st_mode):
        return False
    names = [entry.name for entry in folder.iterdir()]
    if not all(stat.S_ISREG(os.lstat(folder / name).st_mode) for name in names):
        return False
    if MARK in names:
        mark = read_regular(folder / MARK)
        # while it is written, or after a power cut, a part of it may be missing, or be zeros
        begun = _MARKED.startswith(mark.rstrip(b"\0"))
        return (begun or FORMAT.encode() in mark) and all(name.endswith(_SUFFIXES) for name in names)
    if NAME not in names:
        return not names
    text = read_regular(folder / NAME, most_bytes=MOST_BYTES)
    try:
        return {NAME, *Manifest.decode(text, folder).files}.issuperset(names)
    except UsageError:
        return is_manifest(text) and all(NAMES.fullmatch(name) for name in names)


def mark(folder: Path) -> None:
    """Say that this folder, which is empty, is ours; on the disk before anything else is."""
    write_synced(folder / MARK, _MARKED)
    sync(folder)


def empty(folder: Path) -> None:
    """Remove our files from a folder that is ours; those that say so go last, so that it stays ours to the end."""
    ours = [entry for entry in folder.iterdir() if entry.name.endswith(_SUFFIXES) and is_regular(entry)]
    last = [entry for entry in ours if entry.name in (MARK, NAME)]
    for entry in ours:
        if entry not in last:
            entry.unlink()
    if last:
        sync(folder)
    for entry in last:
        entry.unlink()


def remove(folder: Path) -> None:
    """Remove a folder that is ours, as far as that is possible; what somebody has just put into it stays."""
    with contextlib.suppress(OSError):
        empty(folder)
        folder.rmdir()


def of_others(place: Path, name: str) -> UsageError:
    """Why what is at `place` is no state of ours.

    Args:
        place: something that exists.
        name: what to call it.
    """
    if not place.is_dir():
        kind = other_kind(place) or "a file"
        fix = "Use samebits.load_weights for weights." if kind == "a file" else "Check the path."
        return UsageError(f"{name} is {kind}, not a state that run.save_state wrote.", fix)
    if (problem := of_torch(place, name)) is not None:
        return problem
    if (place / NAME).exists():
        return UsageError(f"{name} has a {NAME} that samebits did not write.", "Check the path.")
    return UsageError(
        f"{name} is a folder without {NAME}, not a state that run.save_state wrote.",
        "Use samebits.load_weights for weights.",
    )


def of_torch(folder: Path, name: str) -> UsageError | None:
    """Why a checkpoint of torch.distributed.checkpoint cannot be read; None where it is none."""
    if not (folder / ".metadata").exists() and not any(folder.glob("*.distcp")):
        return None
    return UsageError(
        f"{name} was written by torch.distributed.checkpoint, not by samebits.",
        "Read it with torch.distributed.checkpoint, or make one file of it with "
        "`python -m torch.distributed.checkpoint.format_utils dcp_to_torch`.",
    )
