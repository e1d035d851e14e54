"""Numbers that were measured on this machine, kept from one run to the next in the user's cache folder.

A small JSON file for each kind of machine: `XDG_CACHE_HOME/lockstep/NAME-KEY.json`, mode 0600, written beside and moved
into its place. What was not written by this user for this key, or is older than `OLDEST_S`, does not count.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from lockstep.regular_file import open_regular

MOST_BYTES = 4096
OLDEST_S = 90 * 86400.0
WRITERS_BESIDE_THE_OWNER = stat.S_IWGRP | stat.S_IWOTH


def cache_folder(variables: Mapping[str, str]) -> Path | None:
    """The folder of this user's cached files, which need not exist; None when there is no place for it."""
    asked, home = Path(variables.get("XDG_CACHE_HOME", "")), Path(variables.get("HOME", ""))
    if asked.is_absolute():  # the specification says to ignore others
        return asked / "lockstep"
    return home / ".cache" / "lockstep" if home.is_absolute() else None


class KeptNumbers:
    """One file.

    Args:
        folder: of `cache_folder`.
        name: what the numbers are about; the file's name begins with it.
        key: what they depend on; another key is another file.
    """

    def __init__(self, folder: Path, name: str, key: Mapping[str, str]) -> None:
        self._key = dict(key)
        digest = hashlib.sha256(json.dumps(self._key, sort_keys=True).encode()).hexdigest()[:16]
        self.file = folder / f"{name}-{digest}.json"

    def read(self, names: Sequence[str]) -> dict[str, float]:
        """The numbers by name; empty when the file is missing or not to be trusted. The caller checks their limits."""
        try:
            with open_regular(self.file, follow=False) as file:
                status = os.fstat(file.fileno())
                if status.st_uid != os.geteuid() or status.st_mode & WRITERS_BESIDE_THE_OWNER:
                    return {}
                content = file.read(MOST_BYTES + 1)
            told = json.loads(content) if len(content) <= MOST_BYTES else {}
            if told["key"] != self._key or not 0 <= time.time() - _number(told["written"]) <= OLDEST_S:
                return {}
            return {name: _number(told["numbers"][name]) for name in names}
        except (OSError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
            return {}

    def write(self, numbers: Mapping[str, float]) -> str:
        """Keep them; return why they could not be kept, without a full stop, else an empty text."""
        text = json.dumps({"key": self._key, "written": time.time(), "numbers": dict(numbers)}, indent=1)
        folder = self.file.parent
        if thing := self.in_the_way():
            return f"{thing} is {'a folder' if thing == self.file else 'no folder'}"
        try:
            if whose := _made(folder):
                return whose
            descriptor, beside = tempfile.mkstemp(prefix=".", dir=folder)  # mode 0600
            try:
                with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                    file.write(text + "\n")
                Path(beside).replace(self.file)
            except BaseException:
                with suppress(OSError):
                    Path(beside).unlink()
                raise
        except OSError as error:
            return f"{folder}: {error.strerror or error}"
        return ""

    def in_the_way(self) -> Path | None:
        """What is where the file, or its folder, should be, and must go first; None: nothing, as far as can be seen."""
        with suppress(OSError):
            if self.file.parent.exists() and not self.file.parent.is_dir():
                return self.file.parent
            if self.file.is_dir():
                return self.file
        return None


def _made(folder: Path) -> str:
    """Make the folder, and the one of all cached files above it; why they cannot be used, or an empty text.

    Nothing is made further up: a home that does not exist is none. Nor in a folder of another user, which root could do under
    `sudo`: that user could not use it any more.
    """
    above = folder.parent
    for one in (above, folder):
        if not one.is_symlink() and not one.exists():
            if one.parent.stat().st_uid not in (os.geteuid(), 0):
                return f"{one.parent} is not a folder of this user"
            one.mkdir(mode=0o700, exist_ok=True)
    if folder.lstat().st_uid != os.geteuid() or folder.is_symlink():
        return f"{folder} is not a folder of this user"
    return ""


def _number(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    raise TypeError(f"A finite number is expected, but this is {value!r}.")
