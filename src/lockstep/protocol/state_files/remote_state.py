"""A state at a URL. It is there exactly if its manifest is: that is put last, as one object, and removed first.

    URL/manifest.json                        the manifest of a state folder, and when the state was taken
    URL/model-SHA256.safetensors             its files, named by their content

So a state that replaces another at the same URL overwrites nothing of it before the manifest. A folder that was uploaded
as it is, with the plain names, is read too. Who reads copies all to a private folder first; what reads states of the disk
finds damage there.
"""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lockstep.errors import EnvironmentFailure, LockstepError, UsageError
from lockstep.protocol.state_files.flushed import write_synced
from lockstep.protocol.state_files.folder import StateFolder
from lockstep.protocol.state_files.manifest import MODEL_FILE, MOST_BYTES, NAME, Manifest, SavedFile, is_manifest
from lockstep.protocol.state_files.own_folder import MARK
from lockstep.protocol.state_files.remote_files import RemoteError, RemoteFiles
from lockstep.protocol.url import parted, shown

SAVED = "saved_s"
"""What the manifest says there besides: time.time() when the state was taken, which a disk keeps with the file."""
TRIES = 3
"""How often to read a state that somebody replaces meanwhile."""
_STORED = re.compile(
    r"[A-Za-z0-9_.-]+-[0-9a-f]{64}(\.[a-z]+)?(\.[0-9a-f]{16}\.part)?|manifest\.json\.[0-9a-f]{16}\.part"
)
"""What lockstep puts there besides manifests, and what a program left that ended while it wrote."""
_may_come_late: set[str] = set()
"""Where a manifest was put and nobody knows whether it will arrive: this process removes nothing there that it may name."""
_LARGEST = 1 << 42
"""In bytes: larger than any file of a state. A manifest may say anything."""


def stored_name(name: str, file: SavedFile) -> str:
    """What a file of a state is called at a URL; two with one name have the same content."""
    path = Path(name)
    return f"{path.stem}-{file.sha256}{path.suffix}"


def left_over(names: Iterable[str], now: Manifest | None) -> list[str]:
    """Which files lockstep put there and `now` does not need, which is None when nothing is to stay. Files of others are not among them."""
    needed = {stored_name(*one) for one in now.files.items()} if now is not None else set()
    return [name for name in names if _STORED.fullmatch(name) and name not in needed]


class RemoteState:
    """A state at `url`. One program at a time may write it. Each method may raise `RemoteError`."""

    def __init__(self, url: str) -> None:
        self._files = RemoteFiles(url)

    def put(self, folder: Path) -> None:
        """Copy the whole state in `folder` there, in the place of the one that is there; that stays where this fails.

        Raises:
            UsageError: when there is no whole state in `folder`, or the URL has a manifest of somebody else.
        """
        found = StateFolder(folder).read_manifest()
        assert found is not None, "the caller has just written it"
        place, manifest = found
        self._require_own()
        names = self._files.sizes()
        for name, file in manifest.files.items():
            self._files.put(stored_name(name, file), place / name)
        facts = {**manifest.facts, SAVED: (place / NAME).stat().st_mtime}
        try:
            self._files.put(NAME, Manifest(manifest.files, facts).encode())
        except RemoteError:
            _may_come_late.add(self._files.url)
            raise
        if self._files.url not in _may_come_late:
            with suppress(RemoteError):  # the state is there
                for name in left_over(names, manifest):
                    self._files.remove(name)

    def remove(self) -> None:
        """Remove it, and what a program left that ended while it wrote it. Files of others stay.

        Raises:
            UsageError: when it has a manifest of somebody else.
        """
        self._require_own()
        names = self._files.sizes()
        for name in [*({NAME} & {*names}), *left_over(names, None)]:
            self._files.remove(name)
        with suppress(RemoteError):
            self._files.remove_folder()

    def manifest(self) -> Manifest | None:
        """What its manifest says; None where there is none. Raises `UsageError` when it is damaged."""
        text = self._text()
        return None if text is None else Manifest.decode(text, Path())

    def fetch(self, folder: Path, needed: Callable[[str], bool] = lambda _: True) -> bool:
        """Copy the state into `folder`, which is this program's alone; whether there is one. A file that is missing there is
        missing here.

        Args:
            folder: made if it is missing.
            needed: which files, by their names in a state folder.

        Raises:
            EnvironmentFailure: when there is no room.
        """
        for _ in range(TRIES):
            text = self._text()
            if text is None:
                return False
            wanted = {name: file for name, file in _kept(text, folder).items() if needed(name)}
            require_room(folder, sum(file.size for file in wanted.values()), self._files.url)
            missing = [name for name, file in wanted.items() if not self._fetch_file(folder / name, file)]
            if not missing or self._text() == text:
                break
            for name in wanted:
                (folder / name).unlink(missing_ok=True)
        return True

    def outline(self, folder: Path) -> bool:
        """The same with files of the sizes that they have there, of which none is read."""
        text = self._text()
        if text is None:
            return False
        sizes = self._files.sizes()
        for name, file in _kept(text, folder).items():
            for stored in [one for one in (stored_name(name, file), name) if one in sizes][:1]:
                size = sizes[stored]
                (folder / name).touch(0o600)
                os.truncate(folder / name, min(_LARGEST, file.size if size is None else min(size, file.size + 1)))
        return True

    def _text(self) -> bytes | None:
        text = io.BytesIO()
        try:
            self._files.read(NAME, text, MOST_BYTES)
        except FileNotFoundError:
            return None
        return text.getvalue()

    def _require_own(self) -> None:
        text = self._text()
        if text is not None and not is_manifest(text):
            there = f"{shown(self._files.url)} has a {NAME} that lockstep did not write."
            raise UsageError(there, "Save the state to a place of its own.")

    def _fetch_file(self, path: Path, file: SavedFile) -> bool:
        for name in (stored_name(path.name, file), path.name):
            if _STORED.fullmatch(name) or name == path.name:  # a hash may say anything
                with suppress(FileNotFoundError):
                    fetch_file(self._files, name, path, file.size)
                    return True
        return False


def _kept(text: bytes, folder: Path) -> dict[str, SavedFile]:
    """Write a manifest into `folder`, as a disk has it; the files that it names, none if it is damaged: whoever reads it says so."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        manifest = Manifest.decode(text, folder)
    except UsageError:
        write_synced(folder / NAME, text)
        return {}
    facts = dict(manifest.facts)
    saved_s = facts.pop(SAVED, None)
    write_synced(folder / NAME, Manifest(manifest.files, facts).encode())
    with suppress(TypeError, ValueError, OverflowError, OSError):  # it may say anything
        os.utime(folder / NAME, (saved_s, saved_s))
    return {name: file for name, file in manifest.files.items() if name not in (NAME, MARK)}


def fetch_file(files: RemoteFiles, name: str, path: Path, most_bytes: int) -> None:
    """Copy a file to the new file `path`, flushed to the disk; where this raises, nothing is left.

    Raises:
        FileNotFoundError: when it is not there.
        EnvironmentFailure: when it cannot be read or written.
    """
    try:
        with path.open("xb") as target:
            files.read(name, target, most_bytes)
            target.flush()
            os.fsync(target.fileno())
    except (OSError, RemoteError) as error:
        path.unlink(missing_ok=True)
        if isinstance(error, FileNotFoundError | RemoteError):
            raise
        raise EnvironmentFailure(f"{shown(files.url)} cannot be copied to {path.parent} ({error.strerror}).") from None


def trouble_in(copy: Callable[[], None]) -> str:
    """Why `copy` to a URL failed, without the URL; empty when it did not."""
    try:
        copy()
    except RemoteError as error:
        return error.advice
    except (OSError, LockstepError) as error:
        return str(error)
    return ""


@contextmanager
def named(folder: Path, url: str) -> Iterator[None]:
    """Let errors in this block name the URL instead of the folder that holds its copy."""
    try:
        yield
    except UsageError as error:
        words = (text.replace(str(folder), shown(url)) for text in (error.problem, error.fix))
        raise UsageError(*words) from error.__cause__
    except EnvironmentFailure as error:
        if type(error) is not EnvironmentFailure or str(folder) not in str(error):
            raise
        raise EnvironmentFailure(str(error).replace(str(folder), shown(url))) from error.__cause__


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
    files = RemoteFiles(outside)
    try:
        size = files.size(name)
        require_room(room, size or 0, url)
        fetch_file(files, name, copy, shutil.disk_usage(room).free if size is None else size)
    except FileNotFoundError:
        place = room / "state" / name
        if RemoteState(outside).fetch(place.parent, lambda one: one == name) and place.exists():
            return place
        problem = f"There are no weights at {shown(url)}: no file and no state."
        raise UsageError(problem, "Check the URL.") from None
    return copy


def require_room(folder: Path, size_bytes: int, url: str) -> None:
    """Raise `EnvironmentFailure` where the disk has no room for so much."""
    size_bytes, free = min(size_bytes, _LARGEST), shutil.disk_usage(folder).free
    if size_bytes > free:
        has, room = f"{size_bytes / 1e6:.0f} MB", f"{free / 1e6:.0f} MB"
        raise EnvironmentFailure(f"{shown(url)} has {has}, and the disk of {folder} has room for {room}.")
