"""Files at a URL, through fsspec: every call has a time limit, and every failure is one sentence with a fix.

Runs in: a daemon thread for each call of a driver, which is given up at its time limit.
"""

from __future__ import annotations

import os
import queue
import re
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from samebits.errors import UsageError
from samebits.protocol.url import below, check_url, file_system, shown

Result = TypeVar("Result")

LIMIT_S = 60.0
"""What one call may take,"""
MORE_S_PER_MB = 5.0
"""and so much more for each megabyte that it moves."""
PIECE_BYTES = 1 << 20
_RENAMES = {"file", "local", "sftp", "ssh"}
"""Where a new file can be seen while it is written; an object store shows an object when all of it is there."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,250}")
_SECRET = re.compile(r"(KEY|SECRET|TOKEN|PASSWORD|PASSWD|CREDENTIAL)", re.IGNORECASE)


class RemoteError(UsageError):
    """A URL that could not be read or written, and why."""

    def __init__(self, url: str, error: Exception) -> None:
        said = f"{type(error).__name__} {error}".lower()
        if isinstance(error, FileNotFoundError):
            fix = "Check that the bucket or the folder exists."
        elif any(word in said for word in ("permission", "credential", "denied", "forbidden", "token")):
            fix = "Check the credentials that its driver uses, and what they allow."
        else:
            fix = "Check the address and the network."
        super().__init__(f"{shown(url)} cannot be used: {reason_of(error)}.", fix)


class RemoteFiles:
    """The files of one folder. Each method may raise `RemoteError`.

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
        """What lies in the folder, folders too. Names that nobody here writes are left out."""
        try:
            found = self._call(lambda fs, place: fs.ls(place, detail=False))
        except FileNotFoundError:
            return []
        return sorted(filter(_NAME.fullmatch, {str(one).rstrip("/").rpartition("/")[2] for one in found}))

    def read(self, name: str, target: BinaryIO, most_bytes: int) -> None:
        """Write the content of a file, at most one byte more of it than `most_bytes`, to `target`. Raises FileNotFoundError."""
        source, left = self._call(lambda fs, place: fs.open(below(place, name), "rb")), most_bytes + 1
        with source:
            # [Note: why reads move in pieces]
            # The time limit of a piece is short, so a read that hangs is noticed soon however large the file claims to be.
            while left and (piece := self._try(partial(source.read, min(PIECE_BYTES, left)), PIECE_BYTES)):
                target.write(piece)
                left -= len(piece)

    def put(self, name: str, content: Path | bytes) -> None:
        """Write a file there; a reader sees all of it, or what was there before."""

        def copy(fs: Any, place: str) -> None:
            target = below(place, name)
            renames = _is_one_of(fs, _RENAMES)
            written = f"{target}.{os.urandom(8).hex()}.part" if renames else target
            if renames:
                fs.makedirs(place, exist_ok=True)
            if isinstance(content, Path):
                fs.put_file(str(content), written)
            else:
                fs.pipe_file(written, content)
            if renames:
                fs.mv(written, target)

        try:
            self._call(copy, content.stat().st_size if isinstance(content, Path) else len(content))
        except FileNotFoundError as error:
            raise RemoteError(self.url, error) from None

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        try:
            self._call(lambda fs, place: fs.rm_file(below(place, name)))
        except FileNotFoundError:
            return

    def remove_folder(self) -> None:
        """Remove the folder, if it is empty; an object store has none."""
        self._call(lambda fs, place: fs.rmdir(place) if _is_one_of(fs, {"memory", *_RENAMES}) else None)

    def _call(self, function: Callable[[Any, str], Result], size_bytes: int = 0) -> Result:
        def call() -> Result:
            if self._opened is None:
                self._opened = file_system(self.url)
            self._opened[0].invalidate_cache()
            return function(*self._opened)

        return self._try(call, size_bytes)

    def _try(self, call: Callable[[], Result], size_bytes: int) -> Result:
        try:
            return within(LIMIT_S + MORE_S_PER_MB * size_bytes / 1e6, call)
        except (FileNotFoundError, UsageError):
            raise
        except (NotADirectoryError, IsADirectoryError, FileExistsError) as error:
            # [Note: what drivers raise for a missing file]
            # Some raise these where a file is in the place of a folder, or a folder in that of a file.
            raise FileNotFoundError(str(error)) from None
        except Exception as error:  # noqa: BLE001 - a driver raises what it likes
            raise RemoteError(self.url, error) from None


def within(limit_s: float, call: Callable[[], Result]) -> Result:
    """The result of `call`, or what it raised.

    Raises:
        TimeoutError: when it takes longer than `limit_s`. It continues meanwhile, and keeps no process from ending.
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


def _is_one_of(fs: Any, protocols: set[str]) -> bool:
    return not protocols.isdisjoint((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)
