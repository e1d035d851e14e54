"""A state folder on disk, replaced as a whole: at every instant there is a complete one.

`PATH` is written as `.PATH.saving` beside it and renamed at the end. Where `PATH` is there already, it moves to
`.PATH.previous` first; a program that ends between the two renames leaves that one, and reading finds it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from enum import Enum
from pathlib import Path

from lockstep.checkpoint.manifest import FORMAT, NAME, Manifest
from lockstep.errors import UsageError, WorldError


class Move(Enum):
    """One step of putting a new folder in place."""

    REMOVE_PREVIOUS = "remove .PATH.previous"
    RETIRE = "rename PATH to .PATH.previous"
    INSTALL = "rename .PATH.saving to PATH"
    SYNC = "flush the parent folder to the disk"


def moves(target_exists: bool, previous_exists: bool) -> list[Move]:
    """How to put the new folder in place. Invariant: after each move, PATH or .PATH.previous is complete if one was."""
    if not target_exists:
        return [Move.INSTALL, Move.SYNC, *([Move.REMOVE_PREVIOUS] if previous_exists else [])]
    before = [Move.REMOVE_PREVIOUS] if previous_exists else []
    return [*before, Move.RETIRE, Move.INSTALL, Move.SYNC, Move.REMOVE_PREVIOUS]


class StateFolder:
    """The places of one state."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.target = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow a link and replace its target
        self.stage = self.target.parent / f".{self.target.name}.saving"
        self.previous = self.target.parent / f".{self.target.name}.previous"
        self._lock: int | None = None

    def refusal(self) -> str:
        """Why nothing may be written here; empty when it may."""
        if not self.target.name:
            return "A state needs a folder of its own, not the root of the file system."
        if self.target.is_symlink():
            return f"{self.target} is a link. Save to the folder that it points to."
        if self.target.exists() and not self.target.is_dir():
            return f"{self.target} is a file; a state is a folder. Save it under another name."
        if self.target.is_dir() and not _is_ours(self.target):
            return f"{self.target} is a folder with other things in it. Save the state to a folder of its own below it."
        return ""

    def begin(self) -> None:
        """Make an empty stage. Raises `WorldError` when another program is saving here."""
        self.stage.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.stage, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                self.abandon(keep_stage=True)
                raise WorldError(
                    f"Another program is saving to {self.target}. Give each run a folder of its own."
                ) from None
            # a file system without locks: two runs that save to one place are found by the SHA-256 in the manifest
        for left in self.stage.iterdir():
            left.unlink()

    def install(self) -> None:
        """The stage is complete: put it in place."""
        sync(self.stage)
        for move in moves(self.target.exists(), self.previous.exists()):
            self.carry_out(move)
        self._unlock()

    def carry_out(self, move: Move) -> None:
        """One move."""
        match move:
            case Move.REMOVE_PREVIOUS:
                shutil.rmtree(self.previous)
            case Move.RETIRE:
                self.target.rename(self.previous)
            case Move.INSTALL:
                self.stage.rename(self.target)
            case Move.SYNC:
                sync(self.target.parent)

    def abandon(self, *, keep_stage: bool = False) -> None:
        """Give up: nothing is left of the stage."""
        if not keep_stage:
            shutil.rmtree(self.stage, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def find(self) -> Path | None:
        """The complete folder: PATH, or the one that a program left between two renames; None when there is none.

        Raises:
            UsageError: when PATH is there and is no state.
        """
        for place in (self.target, self.previous):
            if (place / NAME).is_file():
                return place
        if self.target.exists() and (not self.target.is_dir() or any(self.target.iterdir())):
            what = "a folder without manifest.json" if self.target.is_dir() else "a file"
            raise UsageError(
                f"{self.target} is {what}, not a state that run.save_state wrote. For weights use lockstep.load_weights."
            )
        return None

    def read_manifest(self) -> tuple[Path, Manifest] | None:
        """The complete folder and its manifest; None when there is none. Raises `UsageError` when it is damaged."""
        place = self.find()
        if place is None:
            return None
        try:
            return place, Manifest.decode((place / NAME).read_bytes(), place)
        except OSError as error:
            raise WorldError(f"{place / NAME} cannot be read ({error.strerror}).") from error


def _is_ours(folder: Path) -> bool:
    """Whether a folder is empty, or a state (perhaps damaged) and nothing else: what may be replaced."""
    entries = list(folder.iterdir())
    known = all(entry.is_file() and entry.suffix in (".json", ".safetensors") for entry in entries)
    return not entries or (known and (folder / NAME).exists() and FORMAT.encode() in (folder / NAME).read_bytes())


def sync(folder: Path) -> None:
    """Flush a folder's entries to the disk, where its file system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


def write_synced(path: Path, text: bytes) -> None:
    """Write a small file and flush it to the disk."""
    with path.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
