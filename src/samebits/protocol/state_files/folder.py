"""A state folder on disk, replaced as a whole: at every instant there is a complete one.

`PATH` is written as `.PATH.saving` beside it. Then the two change places in one step, and what was replaced is removed;
where the file system has no such step, `PATH` moves to `.PATH.previous` first, and a program that ends between the two
renames leaves that one, which reading finds. What somebody else has put at one of these places is never touched
(`own_folder`). A writer holds locks on the stage and on the state that it replaces until all is done.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from samebits.errors import EnvironmentFailure, UsageError
from samebits.machine.clocks import growing_time
from samebits.machine.regular_file import read_regular
from samebits.protocol.state_files.flushed import exchange, make_synced, sync, write_synced
from samebits.protocol.state_files.manifest import (
    DOCUMENTS,
    MOST_BYTES,
    NAME,
    NOT_FINITE,
    Manifest,
    SavedFile,
    is_manifest,
)
from samebits.protocol.state_files.own_folder import MARK, NAMES, empty, is_ours, mark, of_others, remove

_PREVIOUS = (".{}.previous", ".{}.samebits-previous")
"""Where PATH moves when it cannot be exchanged; the second if the first is somebody else's."""
TRIES = 20
"""How often to look at a place that another program keeps replacing."""


class Move(Enum):
    """One step of putting a new folder in place."""

    EXCHANGE = "swap .PATH.saving and PATH"
    REMOVE_PREVIOUS = "remove .PATH.previous"
    RETIRE = "rename PATH to .PATH.previous"
    INSTALL = "rename .PATH.saving to PATH"
    SYNC = "flush the parent folder to the disk"
    REMOVE_REPLACED = "remove what is at .PATH.saving now"


def moves(target_exists: bool, previous_exists: bool, exchanges: bool) -> list[Move]:
    """How to put the new folder in place. Invariant: after each move, PATH or .PATH.previous is complete if one was; and
    PATH always, where the file system exchanges.
    """
    after = [Move.REMOVE_PREVIOUS] if previous_exists else []
    if not target_exists:
        return [Move.INSTALL, Move.SYNC, *after]
    if exchanges:
        return [Move.EXCHANGE, Move.SYNC, Move.REMOVE_REPLACED, *after]
    return [*after, Move.RETIRE, Move.INSTALL, Move.SYNC, Move.REMOVE_PREVIOUS]


class StateFolder:
    """The places of one state."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.target = Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow a link and replace its target
        self.stage = self.target.parent / f".{self.target.name}.saving"
        self._locks: list[int] = []
        """Locks of the target, if it was there, and of the stage: only their holder writes."""

    @property
    def previous(self) -> Path | None:
        """Where PATH is moved to, and looked for: the first place that is free or ours."""
        for name in _PREVIOUS:
            place = self.target.parent / name.format(self.target.name)
            try:
                if is_ours(place):
                    return place
            except (FileNotFoundError, NotADirectoryError, ValueError):
                return place
            except OSError:  # it cannot be looked at
                continue
        return None

    def refusal(self) -> UsageError | None:
        """Why nothing may be written here; None when it may."""
        if is_state(self.target.parent):
            problem = f"{self.target} would be inside a state, which samebits would no longer take for its own."
            return UsageError(problem, "Save it beside the other one.")
        for _ in range(TRIES):
            try:
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    # [Note: why the stage is looked at first]
                    # Its name is the longest of all: where it is too long, that shows before anything is written.
                    self.stage.lstat()
                return self._refusal()
            except FileNotFoundError:  # another program has just replaced what was looked at
                continue
            except (OSError, ValueError) as error:
                return UsageError(
                    f"A state cannot be saved to {str(self.target)!r}: {error}.", "Save to another folder."
                )
        return UsageError(*_another(self.target))

    def _refusal(self) -> UsageError | None:
        if not self.target.name:
            return UsageError("A state cannot be saved to the root of the file system.", "Give it a folder of its own.")
        if self.target.is_symlink():
            return UsageError(f"{self.target} is a link.", "Save to the folder that it points to.")
        if self.target.exists() and not self.target.is_dir():
            return UsageError(f"{self.target} is a file; a state is a folder.", "Save it under another name.")
        if self.target.is_dir() and not is_ours(self.target):
            problem = f"{self.target} is a folder with other things in it."
            return UsageError(problem, "Save the state to a folder of its own below it.")
        if os.path.lexists(self.stage) and not is_ours(self.stage):
            return UsageError(
                f"{self.stage}, where a state is written before it becomes {self.target}, already exists and was not "
                "made by samebits.",
                "Move it away, or save under another name.",
            )
        return None

    def begin(self) -> None:
        """Make an empty stage. Raises `EnvironmentFailure` when another program is saving here."""
        try:
            self._lock_existing_target()
            self._lock_new_stage()
            # [Note: why it is checked again under the locks]
            # `refusal` looked without locks. Somebody may have put something here since.
            self._require_own()
            empty(self.stage)
            mark(self.stage)
        except (OSError, EnvironmentFailure):
            with contextlib.suppress(OSError):
                if self._is_mine(self.stage):
                    self.stage.rmdir()  # if it is empty
            self._unlock()
            raise

    def _require_own(self) -> None:
        if problem := self._refusal():
            raise EnvironmentFailure(str(problem))

    def _lock_existing_target(self) -> None:
        for _ in range(TRIES):
            if not self.target.is_dir() or self._lock(self.target):
                return
        raise EnvironmentFailure(" ".join(_another(self.target)))

    def _lock_new_stage(self) -> None:
        for _ in range(TRIES):
            make_synced(self.stage.parent)
            with contextlib.suppress(FileExistsError):
                self.stage.mkdir()
            if self._lock(self.stage):
                return
        raise EnvironmentFailure(" ".join(_another(self.target)))

    def _lock(self, folder: Path) -> bool:
        """Lock it; False when another folder is there by now. Raises `EnvironmentFailure` when another program has locked it."""
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # on a file system without locks two runs that save to one place are found by the SHA-256 in the manifest
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                os.close(lock)
                raise EnvironmentFailure(" ".join(_another(self.target))) from None
        if _is_at(lock, folder):
            self._locks.append(lock)
            return True
        os.close(lock)
        return False

    def unmark(self) -> None:
        """Remove the mark of the stage: it is complete, and may become a state."""
        # [Note: in which order a stage loses its mark]
        # The manifest must be on the disk before the mark goes: without both nobody would know whose the folder is.
        sync(self.stage)
        (self.stage / MARK).unlink()
        sync(self.stage)

    def install(self) -> None:
        """Put the complete stage in place. Raises `EnvironmentFailure` when somebody has changed what is there."""
        if not self._is_mine(self.stage):
            raise EnvironmentFailure(" ".join(_another(self.target)))
        self._require_own()
        self.unmark()
        # an empty folder is replaced by the rename itself: it is not worth a complete .PATH.previous
        replaced = self.target.exists() and any(self.target.iterdir())
        if replaced and not self._is_mine(self.target) and not self._lock(self.target):
            raise EnvironmentFailure(" ".join(_another(self.target)))
        previous = self.previous is not None and self.previous.exists()
        if replaced and self.carry_out(Move.EXCHANGE):
            left = moves(replaced, previous, exchanges=True)[2:]
            self._sync_or_swap_back()
        else:
            left = moves(replaced, previous, exchanges=False)
        for move in left:
            self.carry_out(move)
        self._unlock()

    def _sync_or_swap_back(self) -> None:
        """Flush the exchange; where the disk fails, what was replaced must not go."""
        try:
            self.carry_out(Move.SYNC)
        except OSError:
            try:
                self.carry_out(Move.EXCHANGE)
            except OSError:
                self._unlock()  # `abandon` leaves both
            raise

    def carry_out(self, move: Move) -> bool:
        """Make one move; whether the file system can, which only EXCHANGE may fail at."""
        previous = self.previous
        match move:
            case Move.EXCHANGE:
                return exchange(self.stage, self.target)
            case Move.REMOVE_PREVIOUS if previous is not None:
                remove(previous)
            case Move.RETIRE if previous is not None:
                self.target.rename(previous)
            case Move.RETIRE:
                names = " and ".join(name.format(self.target.name) for name in _PREVIOUS)
                raise EnvironmentFailure(
                    f"{self.target} must be moved aside, but {names} beside it are taken. Move them away."
                )
            case Move.INSTALL:
                self.stage.rename(self.target)
            case Move.SYNC:
                sync(self.target.parent)
            case Move.REMOVE_REPLACED:
                remove(self.stage)
        return True

    def abandon(self) -> None:
        """Give up and remove the stage, unless it is another program's."""
        with contextlib.suppress(OSError):
            if self._is_mine(self.stage):
                remove(self.stage)
        self._unlock()

    def _is_mine(self, folder: Path) -> bool:
        """Whether what is there is locked here, and not a new folder that another program has made since."""
        return any(_is_at(lock, folder) for lock in self._locks)

    def _unlock(self) -> None:
        while self._locks:
            os.close(self._locks.pop())

    def find(self) -> Path | None:
        """The complete folder: PATH, or the one that a program left between two renames; None when there is none.

        Raises:
            UsageError: when PATH is there and is not a state.
        """
        problem = None
        # [Note: why a place is looked at several times]
        # Another program may be moving a state just now: for a moment it looks like something else, or like nothing.
        for _ in range(TRIES):
            # once more at the end: another program may have put a new state in place between the first two looks
            for place in (self.target, self.previous, self.target):
                if place is not None and os.path.lexists(place / NAME):
                    return place
            try:
                self.target.stat()  # a link to nothing is nothing
                if self.target.is_dir() and not any(self.target.iterdir()):
                    return None
                problem = of_others(self.target, str(self.target))
            except FileNotFoundError:
                return None
        if problem is not None:
            raise problem
        return None

    def read_manifest(self) -> tuple[Path, Manifest] | None:
        """The complete folder and its manifest; None when there is none. Raises `UsageError` when it is damaged."""
        place = self.target
        try:
            found = self.find()
            if found is None:
                return None
            place = found
            text = read_regular(place / NAME, follow=False, most_bytes=MOST_BYTES)
            if not may_be_state(place):
                raise of_others(place, str(place))
            return place, Manifest.decode(text, place)
        except OSError as error:
            raise UsageError(f"{place / NAME} cannot be read ({error.strerror}).", "Check the path.") from error


def is_state(folder: Path) -> bool:
    """Whether there is a manifest of ours, perhaps a damaged one, or something else in its place."""
    manifest = folder / NAME
    with contextlib.suppress(OSError, ValueError):
        if not os.path.lexists(manifest):
            return False
        return not manifest.is_file() or is_manifest(read_regular(manifest, most_bytes=MOST_BYTES))
    return False


def may_be_state(folder: Path) -> bool:
    """Whether it is one, perhaps with a manifest that is damaged beyond recognition, or gone."""
    if is_state(folder):
        return True
    with contextlib.suppress(OSError):
        names = {entry.name for entry in folder.iterdir()}
        return DOCUMENTS in names and all(NAMES.fullmatch(name) for name in names)
    return False


def identity_of(place: Path) -> tuple[int, int] | None:
    """Which folder is there now: another one after a program has replaced it; None if nothing is."""
    try:
        found = place.stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def left_between(target: Path, loaded: Path) -> str:
    """What to say when a program ended between two renames, and the folder that it left is loaded."""
    return f"{target} is missing, because a program ended while it replaced it; loaded {loaded}, which is complete."


def _another(target: Path) -> tuple[str, str]:
    return f"Another program is saving to {target}.", "Give each run a folder of its own."


def is_locked(folder: Path) -> bool:
    """Whether somebody is writing there."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def _is_at(descriptor: int, place: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(place))
    except FileNotFoundError:
        return False


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
