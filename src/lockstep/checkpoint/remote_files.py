"""Files at a URL, through fsspec: every call has a time limit, and every failure is one sentence with a fix.

An object store shows an object when all of it is there. Where a file can be seen while it is written, it is written
under another name and renamed.
"""

from __future__ import annotations

import errno
import os
import queue
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from lockstep.errors import UsageError, WorldError
from lockstep.handover.url import below, check_url, file_system, shown

Result = TypeVar("Result")

LIMIT_S = 60.0
"""What one call may take,"""
MORE_S_PER_MB = 5.0
"""and so much more for each megabyte that it moves."""
PIECE_BYTES = 1 << 20
_RENAMES = ("file", "local", "sftp", "ssh")
"""Where a new file can be seen while it is written, and a rename replaces the old one."""
_HAVE_FOLDERS = ("memory", *_RENAMES)
"""Where a folder is more than the beginning of its files' names."""
_PART = re.compile(r".+\.[0-9a-f]{16}\.part")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,250}")
_SECRET = re.compile(r"(KEY|SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL)", re.IGNORECASE)


class RemoteError(WorldError):
    """A URL that could not be read or written.

    Args:
        url: the place.
        reason: what happened, without a full stop.
        fix: what to do about it.
    """

    def __init__(self, url: str, reason: str, fix: str) -> None:
        self.problem, self.fix = f"{shown(url)} cannot be used: {reason}.", fix
        super().__init__(f"{self.problem} {fix}")
        self.advice = f"{reason}. {fix}"
        """The same without the URL."""


class RemoteFiles:
    """The files of one folder.

    Args:
        url: the folder.

    Raises:
        UsageError: where `check_url` refuses it.
    """

    def __init__(self, url: str) -> None:
        check_url(url)
        self.url = url.rstrip("/")
        self._opened: tuple[Any, str] | None = None

    def names(self) -> list[str]:
        """What lies in the folder, folders too; names that nobody here writes are left out. Empty when there is none."""
        try:
            found = self._call(lambda fs, place: (fs.invalidate_cache(), fs.ls(place, detail=False))[1])
        except FileNotFoundError:
            return []
        names = {str(one).rstrip("/").rpartition("/")[2] for one in found}
        return sorted(name for name in names if _NAME.fullmatch(name))

    def size(self, name: str) -> int | None:
        """The size of a file in bytes; None where the server does not say. Raises FileNotFoundError."""
        told = self._call(lambda fs, place: (fs.invalidate_cache(), fs.info(below(place, name)))[1])
        if told.get("type") == "directory":
            raise FileNotFoundError(name)
        return told["size"] if type(told.get("size")) is int else None

    def read(self, name: str, most_bytes: int) -> bytes:
        """The content of a file, not more of it than `most_bytes`. Raises FileNotFoundError."""
        if (self.size(name) or 0) > most_bytes:
            raise RemoteError(self.url, f"{name} is too large", "Check what is there.")
        content: bytes = self._call(lambda fs, place: fs.cat_file(below(place, name)), most_bytes)
        return content[:most_bytes]

    def get(self, name: str, path: Path, most_bytes: int) -> None:
        """Write the content of a file, at most one byte more of it than `most_bytes`, to the new file `path`.

        Raises:
            FileNotFoundError: when it is not there.
        """

        def copy(fs: Any, place: str) -> None:
            with fs.open(below(place, name), "rb") as source, path.open("xb") as target:
                left = most_bytes + 1
                while left and (piece := source.read(min(PIECE_BYTES, left))):
                    target.write(piece)
                    left -= len(piece)
                target.flush()
                os.fsync(target.fileno())

        self.size(name)  # some drivers say only when they read that a file is not there
        try:
            self._call(copy, most_bytes)
        except (FileNotFoundError, RemoteError):
            path.unlink(missing_ok=True)
            raise

    def put(self, name: str, path: Path) -> None:
        """Write the file `path` there; a reader sees all of it, or what was there before."""

        def copy(fs: Any, place: str) -> None:
            target = below(place, name)
            if not _is_one_of(fs, _RENAMES):
                fs.put_file(str(path), target)
                return
            part = f"{target}.{os.urandom(8).hex()}.part"
            fs.makedirs(place, exist_ok=True)
            fs.put_file(str(path), part)
            fs.mv(part, target)

        try:
            self._call(copy, path.stat().st_size)
        except FileNotFoundError as error:
            raise self._failure(error) from None

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        try:
            self._call(lambda fs, place: fs.rm_file(below(place, name)))
        except FileNotFoundError:
            return

    def remove_folder(self) -> None:
        """Remove the folder where there are such things, if it is empty."""
        self._call(lambda fs, place: fs.rmdir(place) if _is_one_of(fs, _HAVE_FOLDERS) else None)

    def _call(self, function: Callable[[Any, str], Result], size_bytes: int = 0) -> Result:
        def call() -> Result:
            if self._opened is None:
                self._opened = file_system(self.url)
            return function(*self._opened)

        try:
            return within(LIMIT_S + MORE_S_PER_MB * size_bytes / 1e6, call)
        except (FileNotFoundError, UsageError):
            raise
        except NotADirectoryError as error:
            raise FileNotFoundError(str(error)) from None
        except Exception as error:  # noqa: BLE001 - a driver raises what it likes
            raise self._failure(error) from None

    def _failure(self, error: Exception) -> RemoteError:
        return RemoteError(self.url, reason_of(error), _fix_for(error))


def is_part(name: str) -> bool:
    """Whether this is what a program left that ended while it wrote."""
    return _PART.fullmatch(name) is not None


def within(limit_s: float, call: Callable[[], Result]) -> Result:
    """The result of `call`, or what it raised.

    Raises:
        TimeoutError: when it takes longer than `limit_s`. It goes on meanwhile, and keeps no process from ending.
    """
    ended: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            ended.put((call(), None))
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            ended.put((None, error))

    threading.Thread(target=work, daemon=True).start()
    try:
        result, error = ended.get(timeout=limit_s)
    except queue.Empty:
        raise TimeoutError(f"no answer within {limit_s:.0f} s") from None
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]


def reason_of(error: Exception) -> str:
    """What a driver says, in one line without credentials."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else error  # the URL is named anyway
    lines = str(said).strip().splitlines() or [""]
    text = re.sub(r"\?[^\s\"']+", "?…", re.sub(r"://[^/\s@]+@", "://…@", lines[0]))
    for name, value in os.environ.items():
        if _SECRET.search(name) and len(value) >= 8:
            text = text.replace(value, "…")
    return f"{text.rstrip('.')[:300]} ({type(error).__name__})" if text else type(error).__name__


def _fix_for(error: Exception) -> str:
    said = f"{type(error).__name__} {error}".lower()
    if isinstance(error, FileNotFoundError):
        return "Check that the bucket or the folder exists."
    if isinstance(error, PermissionError) or any(
        word in said for word in ("credential", "denied", "forbidden", "token")
    ):
        return "Check the credentials that its driver uses, and what they allow."
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Make room on the disk."
    if isinstance(error, ImportError):
        return "Install what its driver needs."
    return "Check the address and the network."


def _is_one_of(fs: Any, protocols: tuple[str, ...]) -> bool:
    own = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    return any(protocol in protocols for protocol in own)
