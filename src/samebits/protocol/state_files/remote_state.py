"""States at URLs. A state is there exactly if its manifest is: that is put last, as one object, and removed first.

    URL/manifest.json                        the manifest of a state folder, and when the state was taken
    URL/model-SHA256.safetensors             its files, named by their content

A folder that was uploaded as it is, with the plain names, is read too. Whoever reads copies all to a private folder first;
what reads states of the disk finds damage there.
"""

from __future__ import annotations

import io
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from samebits.errors import EnvironmentFailure, SamebitsError, UsageError
from samebits.notices import say
from samebits.protocol.saving import step_of
from samebits.protocol.state_files.flushed import write_synced
from samebits.protocol.state_files.folder import StateFolder
from samebits.protocol.state_files.manifest import (
    MODEL_FILE,
    MOST_BYTES,
    NAME,
    Manifest,
    SavedFile,
    is_manifest,
    problem_of,
)
from samebits.protocol.state_files.own_folder import MARK
from samebits.protocol.state_files.remote_files import RemoteError, RemoteFiles
from samebits.protocol.state_files.whole_state import trouble_of
from samebits.protocol.url import below, parted, shown

SAVED = "saved_s"
"""What the manifest says there besides: time.time() when the state was taken, which a disk keeps with the file."""
TRIES = 3
"""How often to read a state that somebody replaces meanwhile."""
_STORED = re.compile(
    r"[A-Za-z0-9_.-]+-[0-9a-f]{64}(\.[a-z]+)?(\.[0-9a-f]{16}\.part)?|manifest\.json\.[0-9a-f]{16}\.part"
)
"""What samebits puts there besides manifests, and what a killed program left."""
_may_come_late: set[str] = set()
"""URLs whose manifest was put without an answer (see [Note: a manifest may come late])."""
_LARGEST = 1 << 42
"""In bytes: larger than any file of a state. A manifest may say anything."""


def stored_name(name: str, file: SavedFile) -> str:
    """What a file of a state is called at a URL; two with one name have the same content."""
    path = Path(name)
    return f"{path.stem}-{file.sha256}{path.suffix}"


def left_over(names: Iterable[str], now: Manifest | None) -> list[str]:
    """Which files samebits put there and `now` does not need (None: all of them). Files of others are not among them."""
    needed = {stored_name(*one) for one in now.files.items()} if now is not None else set()
    return [name for name in names if _STORED.fullmatch(name) and name not in needed]


class RemoteState:
    """A state at `url`. One program at a time may write it. Each method may raise `RemoteError`."""

    def __init__(self, url: str) -> None:
        self._files = RemoteFiles(url)

    def put(self, folder: Path) -> None:
        """Copy the whole state in `folder` there, in the place of the one that is there; that stays where this fails.

        Raises:
            UsageError: when the URL has a manifest of somebody else.
        """
        found = StateFolder(folder).read_manifest()
        assert found is not None, "the caller has just written it"
        place, manifest = found
        self._require_own()
        names = self._files.names()
        for name, file in manifest.files.items():
            self._files.put(stored_name(name, file), place / name)
        facts = {**manifest.facts, SAVED: (place / NAME).stat().st_mtime}
        try:
            self._files.put(NAME, Manifest(manifest.files, facts).encode())
        except RemoteError:
            # [Note: a manifest may come late]
            # A request that was given up may still arrive, after that of a later save. So from now on this process
            # removes nothing at this URL: whichever manifest is the last, its files are there.
            _may_come_late.add(self._files.url)
            raise
        if self._files.url not in _may_come_late:
            with suppress(RemoteError):  # the state is there
                for name in left_over(names, manifest):
                    self._files.remove(name)

    def remove(self) -> None:
        """Remove it, and what a killed program left. Files of others stay.

        Raises:
            UsageError: when it has a manifest of somebody else.
        """
        self._require_own()
        names = self._files.names()
        for name in [*({NAME} & {*names}), *left_over(names, None)]:
            self._files.remove(name)
        with suppress(RemoteError):
            self._files.remove_folder()

    def manifest(self) -> Manifest | None:
        """What its manifest says; None where there is none. Raises `UsageError` when it is damaged."""
        text = self._text()
        return None if text is None else Manifest.decode(text, Path())

    def fetch(self, folder: Path, needed: Callable[[str], bool] = lambda _: True, *, outline: bool = False) -> bool:
        """Copy the state into `folder`, which is this program's alone; whether there is one. A file that is missing there is
        missing here.

        Args:
            folder: made if it is missing.
            needed: which files, by their names in a state folder.
            outline: make empty files of the sizes in the manifest, without reading any.

        Raises:
            EnvironmentFailure: when there is no room.
        """
        for _ in range(TRIES):
            text = self._text()
            if text is None:
                return False
            wanted = {name: file for name, file in _placed(text, folder).items() if needed(name)}
            if outline:
                self._outline(folder, wanted)
                return True
            require_room(folder, sum(file.size for file in wanted.values()), self._files.url)
            missing = [name for name, file in wanted.items() if not self._fetch_file(folder / name, file)]
            if not missing or self._text() == text:
                break
            for name in wanted:
                (folder / name).unlink(missing_ok=True)
        return True

    def _outline(self, folder: Path, wanted: dict[str, SavedFile]) -> None:
        names = {*self._files.names()}
        for name, file in wanted.items():
            if not names.isdisjoint((stored_name(name, file), name)):
                (folder / name).touch(0o600)
                os.truncate(folder / name, min(_LARGEST, file.size))

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
            there = f"{shown(self._files.url)} has a {NAME} that samebits did not write."
            raise UsageError(there, "Save the state to a place of its own.")

    def _fetch_file(self, path: Path, file: SavedFile) -> bool:
        for name in (stored_name(path.name, file), path.name):
            # [Note: a manifest is untrusted]
            # Its hashes become parts of names at the URL, so only what looks like a hash is asked for.
            if _STORED.fullmatch(name) or name == path.name:
                with suppress(FileNotFoundError):
                    fetch_file(self._files, name, path, file.size)
                    return True
        return False


class RemoteStore:
    """The newest states of a run: `URL/step-00000500`, of which `keep` stay."""

    def __init__(self, url: str, keep: int) -> None:
        self.url, self._keep = url, keep

    def newest_first(self) -> list[str]:
        """The names of the states, perhaps damaged ones or halves of some."""
        steps = {step: name for name in RemoteFiles(self.url).names() if (step := step_of(name)) is not None}
        return [steps[step] for step in sorted(steps, reverse=True)]

    def put(self, folder: Path) -> None:
        """Copy the state in `folder` there, then remove states that are too old, and what a killed program left. The newest
        finite one stays.

        Raises:
            SamebitsError: when it could not be copied.
        """
        self._state(folder.name).put(folder)
        with suppress(RemoteError):
            num_kept, has_finite = 0, False
            for name in self.newest_first():
                found = self._manifest(name)
                is_newest_finite = isinstance(found, Manifest) and not found.not_finite and not has_finite
                has_finite = has_finite or is_newest_finite
                num_kept += found is not None
                if found is None or (num_kept > self._keep and not is_newest_finite):
                    # [Note: what is not ours stays]
                    # `remove` raises where somebody else's manifest is there.
                    with suppress(UsageError):
                        self._state(name).remove()

    def fetch_newest(self, place: Path, beyond: int, *, takes_any: bool = False) -> tuple[str, list[str]]:
        """Copy the newest whole state into the folder of states `place`, if its step is later than `beyond`.

        One that is not finite is left out unless this `takes_any`.

        Returns:
            Its name, empty where there is none; and what is wrong with newer ones.

        Raises:
            RemoteError: when the URL cannot be read.
            EnvironmentFailure: when it cannot be written to the disk.
        """
        problems: list[str] = []
        for name in self.newest_first():
            if (step_of(name) or 0) <= beyond:
                break
            url, found = shown(below(self.url, name)), self._manifest(name)
            if found is None:
                continue
            if isinstance(found, Manifest) and found.not_finite and not takes_any:
                problems.append(f"{url} is not finite ({found.not_finite}).")
                continue
            say(f"the newest state is {url}, which is copied to {place}")
            folder = StateFolder(place / name)
            if (problem := self._install(name, folder)) is None:
                return name, problems
            problems.append(problem_of(problem).replace(str(folder.stage), url))
        return "", problems

    def _install(self, name: str, folder: StateFolder) -> SamebitsError | None:
        """Copy a state to its place on the disk; what is wrong with it, in which case nothing is there."""
        try:
            folder.begin()
            self._state(name).fetch(folder.stage)
            problem = trouble_of(folder.stage)
            if problem is None:
                folder.install()
        except OSError as error:
            raise EnvironmentFailure(f"{folder.target} cannot be written ({error.strerror}).") from None
        finally:
            folder.abandon()
        return problem

    def _state(self, name: str) -> RemoteState:
        return RemoteState(below(self.url, name))

    def _manifest(self, name: str) -> Manifest | UsageError | None:
        """What the manifest says, or what is wrong with it; None where there is none."""
        try:
            return self._state(name).manifest()
        except RemoteError:
            raise
        except UsageError as error:
            return error


def _placed(text: bytes, folder: Path) -> dict[str, SavedFile]:
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
        EnvironmentFailure: when it cannot be written.
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
    """Why `copy` failed; empty when it did not."""
    try:
        copy()
    except (OSError, SamebitsError) as error:
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
    """Copy what `samebits.load_weights` reads: a state's models, or a file; return where it is.

    Raises:
        UsageError: when there is nothing, or it cannot be read.
    """
    if RemoteState(url).fetch(room / "state", lambda one: MODEL_FILE.fullmatch(one) is not None):
        return room / "state"
    outside, name = parted(url)
    copy = room / re.sub(r"[^A-Za-z0-9_.-]", "_", shown(name))[-200:]
    with suppress(FileNotFoundError):
        fetch_file(RemoteFiles(outside), name, copy, shutil.disk_usage(room).free)
        return copy
    raise UsageError(f"There are no weights at {shown(url)}: no file and no state.", "Check the URL.")


def require_room(folder: Path, size_bytes: int, url: str) -> None:
    """Raise `EnvironmentFailure` where the disk has no room for so much."""
    size_bytes, free = min(size_bytes, _LARGEST), shutil.disk_usage(folder).free
    if size_bytes > free:
        has, room = f"{size_bytes / 1e6:.0f} MB", f"{free / 1e6:.0f} MB"
        raise EnvironmentFailure(f"{shown(url)} has {has}, and the disk of {folder} has room for {room}.")
