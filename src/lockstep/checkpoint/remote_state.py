"""A state at a URL. It is there exactly if its manifest is: that is put last, as one object, and removed first.

    URL/manifest.json                        the manifest of a state folder, and when the state was taken
    URL/model-SHA256.safetensors             its files, named by their content

So a state that replaces another at the same URL overwrites nothing of it before the manifest. A folder that was uploaded
as it is, with the plain names, is read too. Who reads copies all to a private folder first; what reads states of the disk
finds damage there.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lockstep.checkpoint.flushed import write_synced
from lockstep.checkpoint.folder import StateFolder
from lockstep.checkpoint.manifest import MODEL_FILE, MOST_BYTES, NAME, Manifest, SavedFile, is_manifest
from lockstep.checkpoint.own_folder import MARK
from lockstep.checkpoint.remote_files import RemoteError, RemoteFiles, is_part
from lockstep.errors import LockstepError, UsageError, WorldError
from lockstep.handover.run_folder import COPY
from lockstep.handover.url import parted, shown
from lockstep.machine.temporary_folder import TemporaryFolder

SAVED = "saved_s"
"""What the manifest says there besides: time.time() when the state was taken, which a disk keeps with the file."""
TRIES = 3
"""How often to read a state that somebody replaces meanwhile."""
_STORED = re.compile(r"[A-Za-z0-9_.-]+-[0-9a-f]{64}(\.[a-z]+)?")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_may_come_late: set[str] = set()
"""Where a manifest was put and nobody knows whether it arrived, or will: this process removes nothing there that it may name."""
_FAR_FUTURE_S = 1e11
_LARGEST = 1 << 42
"""In bytes: larger than any file of a state. A manifest may say anything."""


def stored_name(name: str, file: SavedFile) -> str:
    """What a file of a state is called at a URL; two with one name have the same content."""
    stem, dot, suffix = name.rpartition(".")
    return f"{stem}-{file.sha256}{dot}{suffix}" if stem else f"{name}-{file.sha256}"


def left_over(names: list[str], before: Manifest | None, now: Manifest | None) -> list[str]:
    """Which files lockstep put there and `now` does not need; files of others are not among them.

    Args:
        names: what is there.
        before: what the manifest said that was there; it may name a folder that was uploaded as it is.
        now: what it says now; None when nothing is to stay.
    """
    needed = {stored_name(name, file) for name, file in now.files.items()} if now is not None else set()
    plain = {*before.files} if before is not None and SAVED not in before.facts else set()
    ours = [name for name in names if _STORED.fullmatch(name) or name in plain or is_part(name)]
    return [name for name in ours if name not in needed and name != NAME]


class RemoteState:
    """A state at `url`. One program at a time may write it."""

    def __init__(self, url: str) -> None:
        self._files = RemoteFiles(url)

    def put(self, folder: Path) -> None:
        """Copy the whole state in `folder` there, in the place of the one that is there.

        Raises:
            RemoteError: when that is impossible; what was there before is still there.
            UsageError: when there is no whole state in `folder`, or the URL has a manifest of somebody else.
        """
        found = StateFolder(folder).read_manifest()
        assert found is not None, "the caller has just written it"
        place, manifest = found
        names = self._files.names()
        before = self._known(names)
        for name, file in manifest.files.items():
            self._files.put(stored_name(name, file), place / name)
        with TemporaryFolder(COPY) as room:
            text = room / NAME
            saved_s = (place / NAME).stat().st_mtime
            text.write_bytes(Manifest(manifest.files, {**manifest.facts, SAVED: saved_s}).encode())
            try:
                self._files.put(NAME, text)
            except RemoteError:
                _may_come_late.add(self._files.url)
                raise
        if self._files.url not in _may_come_late:
            with suppress(RemoteError):  # the state is there
                for name in left_over(names, before, manifest):
                    self._files.remove(name)

    def remove(self) -> None:
        """Remove it, and what a program left that ended while it wrote it. Files of others stay.

        Raises:
            RemoteError: when that is impossible.
            UsageError: when it has a manifest of somebody else.
        """
        names = self._files.names()
        before = self._known(names)
        for name in [*([NAME] if NAME in names else []), *left_over(names, before, None)]:
            self._files.remove(name)
        with suppress(RemoteError):
            self._files.remove_folder()

    @property
    def is_there(self) -> bool:
        """Whether there is a state, perhaps a damaged one."""
        return NAME in self._files.names()

    def not_finite(self) -> str | None:
        """A tensor of it that is not finite; empty where all are that should be, None where its manifest is damaged.

        Raises:
            RemoteError: when the URL cannot be read.
        """
        try:
            text = self._text()
            return Manifest.decode(text, Path()).not_finite if text is not None else None
        except UsageError:
            return None

    def fetch(self, folder: Path, needed: Callable[[str], bool] = lambda _: True, *, only_sizes: bool = False) -> bool:
        """Copy the state into `folder`, which is this program's alone; whether there is one. A file that is missing there is
        missing here.

        Args:
            folder: made if it is missing.
            needed: which files, by their names in a state folder.
            only_sizes: make files of the same sizes without reading any.

        Raises:
            RemoteError: when the URL cannot be read.
            WorldError: when there is no room.
        """
        for _ in range(TRIES):
            text = self._text()
            if text is None:
                return False
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                manifest = Manifest.decode(text, folder)
            except UsageError:
                write_synced(folder / NAME, text)
                return True  # whoever reads it says so
            saved_s = manifest.facts.get(SAVED)
            facts = {name: value for name, value in manifest.facts.items() if name != SAVED}
            write_synced(folder / NAME, Manifest(manifest.files, facts).encode())
            if isinstance(saved_s, int | float) and math.isfinite(saved_s) and 0 <= saved_s < _FAR_FUTURE_S:
                os.utime(folder / NAME, (saved_s, saved_s))
            wanted = {name: file for name, file in manifest.files.items() if needed(name) and name not in (NAME, MARK)}
            if not only_sizes:
                _require_room(folder, sum(file.size for file in wanted.values()), self._files.url)
            missing = [name for name, file in wanted.items() if not self._fetch_file(folder / name, file, only_sizes)]
            if not missing or self._text() == text:
                return True
            for name in wanted:
                (folder / name).unlink(missing_ok=True)
        return True

    def _text(self) -> bytes | None:
        try:
            return self._files.read(NAME, MOST_BYTES)
        except FileNotFoundError:
            return None

    def _known(self, names: list[str]) -> Manifest | None:
        """The manifest that is there; None where there is none, or a damaged one."""
        text = self._text() if NAME in names else None
        if text is None:
            return None
        try:
            return Manifest.decode(text, Path())
        except UsageError:
            if is_manifest(text):
                return None
        there = f"{shown(self._files.url)} has a {NAME} that lockstep did not write."
        raise UsageError(there, "Save the state to a place of its own.")

    def _fetch_file(self, path: Path, file: SavedFile, only_size: bool) -> bool:
        stored = [stored_name(path.name, file)] if _SHA256.fullmatch(file.sha256) else []
        for name in [*stored, path.name]:
            with suppress(FileNotFoundError):
                if only_size:
                    size = self._files.size(name)
                    path.touch(0o600)
                    os.truncate(path, min(_LARGEST, file.size if size is None else min(size, file.size + 1)))
                else:
                    self._files.get(name, path, file.size)
                return True
        return False


def trouble_in(copy: Callable[[], None]) -> str:
    """Why `copy` to a URL failed, without the URL; empty when it did not."""
    try:
        copy()
    except RemoteError as error:
        return error.advice
    except (OSError, LockstepError) as error:
        return str(error)
    return ""


def in_words(error: LockstepError, folder: Path, url: str) -> str:
    """What an error says, without its fix, with the URL instead of the folder that holds its copy."""
    return (error.problem if isinstance(error, UsageError) else str(error)).replace(str(folder), shown(url))


@contextmanager
def named(folder: Path, url: str) -> Iterator[None]:
    """Let errors in this block name the URL instead of the folder that holds its copy."""
    try:
        yield
    except UsageError as error:
        words = (text.replace(str(folder), shown(url)) for text in (error.problem, error.fix))
        raise UsageError(*words) from error.__cause__
    except WorldError as error:
        if type(error) is not WorldError or str(folder) not in str(error):
            raise
        raise WorldError(str(error).replace(str(folder), shown(url))) from error.__cause__


def fetch_weights(url: str, room: Path) -> Path:
    """Copy what `lockstep.load_weights` reads: a state's models, one of them, or a file; return where it is.

    Raises:
        UsageError: when there is nothing.
        RemoteError: when it cannot be read.
    """
    if RemoteState(url).fetch(room / "state", lambda one: MODEL_FILE.fullmatch(one) is not None):
        return room / "state"
    outside, name = parted(url)
    copy = room / re.sub(r"[^A-Za-z0-9_.-]", "_", shown(name))[-200:]
    try:
        size = RemoteFiles(outside).size(name)
    except FileNotFoundError:
        place = room / "state" / name
        if RemoteState(outside).fetch(place.parent, lambda one: one == name) and place.exists():
            return place
        missing = f"There are no weights at {shown(url)}: no file and no state."
        raise UsageError(missing, "Check the URL.") from None
    _require_room(room, size or 0, url)
    RemoteFiles(outside).get(name, copy, shutil.disk_usage(room).free if size is None else size)
    return copy


def _require_room(folder: Path, size_bytes: int, url: str) -> None:
    size_bytes, free = min(size_bytes, _LARGEST), shutil.disk_usage(folder).free
    if size_bytes > free:
        raise WorldError(
            f"{shown(url)} has {size_bytes / 1e6:.0f} MB, and the disk of {folder} has room for {free / 1e6:.0f} MB."
        )
