"""Files that several ranks write to the same path: a script for one process does so, and the last rank wins.

`open`, `io.open` and `torch.save` are watched while a run with several ranks lasts: what a rank opened for writing is
reported to the others with exchanges that are made anyway.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from samebits.rank.caller import frames
from samebits.rank.look.frames import is_the_users

MOST_REPORTED = 32
"""The most paths that are reported at one time."""
_ELSEWHERE = ("/dev/", "/proc/", "/sys/")


class WrittenFiles:
    """Remembers what this process opens for writing outside the run's `own` folder, until `close`."""

    def __init__(self, own: Path | None) -> None:
        self._own = f"{own.absolute()}/" if own is not None else "/dev/"
        self._process = os.getpid()
        self._closed = False
        """Somebody else's patch may keep ours alive."""
        self._new: dict[str, str] = {}
        self._said: set[str] = set()
        # [Note: why no audit hook]
        # It would see more, but cannot be removed: it made each look at a frame, which every exchange needs for its source
        # line, three times as slow.
        self._undo = [
            _replace((builtins, io), "open", self._opening),
            _replace((torch, torch.serialization), "save", self._saving),
        ]

    def take(self) -> dict[str, str]:
        """Return the source line of each path written since the last call."""
        new, self._new = dict(list(self._new.items())[:MOST_REPORTED]), {}
        return new

    def conclude(self, everyone: Iterable[Mapping[str, str]]) -> list[str]:
        """Return a sentence, once, for each path that several ranks wrote, from what all of them took."""
        writers: dict[str, list[int]] = defaultdict(list)
        lines: dict[str, str] = {}
        for rank, paths in enumerate(everyone):
            for path, line in paths.items():
                writers[path].append(rank)
                lines.setdefault(path, line)
        found = [path for path, ranks in writers.items() if len(ranks) > 1 and path not in self._said]
        self._said.update(found)
        return [
            f"ranks {', '.join(map(str, writers[path]))} each wrote {path} ({lines[path]}), so the file is "
            f"overwritten or mixed. Write it on one rank (`if run.is_main:`), or use run.save_weights and "
            f"run.save_state."
            for path in found
        ]

    def close(self) -> None:
        """Restore `open` and `torch.save`."""
        self._closed = True
        for undo in self._undo:
            undo()

    def _opening(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            opened = function(file, mode, *args, **kwargs)
            if isinstance(mode, str) and not {"w", "a", "x", "+"}.isdisjoint(mode):
                self._wrote(file, opened)
            return opened

        return open

    def _saving(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            function(obj, f, *args, **kwargs)
            self._wrote(f, None)

        return save

    def _wrote(self, file: Any, opened: Any) -> None:
        # A loader worker is a fork and has the patch too, but nobody to report to.
        if self._closed or not isinstance(file, (str, bytes, os.PathLike)) or os.getpid() != self._process:
            return
        path = _path(file, opened)
        if not path or path.startswith((self._own, *_ELSEWHERE)) or "/." in path or path in self._new:
            return
        for name, line in frames():
            if is_the_users(name):
                self._new[path] = f"{name.rpartition('/')[2]}:{line}"
                return


def _path(file: str | bytes | os.PathLike[str], opened: Any) -> str:
    """The path of a file; of an open one where it truly is, which an `opener=` decides. Empty where no name leads to it.

    `tempfile` opens its files so: under the name of their folder, and those of `TemporaryFile` are nameless.
    """
    try:
        number = opened.fileno()
        return str(Path(f"/proc/self/fd/{number}").readlink()) if os.fstat(number).st_nlink else ""
    except (AttributeError, OSError, ValueError):
        # It is closed already, or somebody else's kind of file.
        return os.path.realpath(os.fsdecode(file))


def _replace(
    modules: Iterable[Any], name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[[], None]:
    places = list(modules)
    before = getattr(places[0], name)
    replacement = around(before)
    for module in places:
        setattr(module, name, replacement)

    def undo() -> None:
        for module in places:
            if getattr(module, name) is replacement:
                setattr(module, name, before)

    return undo
