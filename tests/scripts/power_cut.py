"""What may be on a disk after the power was cut during some system calls: a small model of a file system.

What was flushed (`fsync` of a file: its content; of a folder: its entries) is there. Of the rest, anything may be missing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.support.system_calls import Made

ORDERS = ("journal", "folders", "names")
"""How a file system keeps the order of changes to entries that were not flushed: all in one order, as ext4 and XFS do; in one
order in each folder; or only those of one name, which is all that POSIX promises."""

_EXCHANGE = 2


@dataclass(eq=False)
class File:
    """A file, or a version of it."""

    content: bytearray = field(default_factory=bytearray)
    flushed: int = 0
    """How many bytes at its beginning are on the disk."""


@dataclass(eq=False)
class Folder:
    """A folder as the running program sees it."""

    entries: dict[str, Folder | File] = field(default_factory=dict)


@dataclass(frozen=True)
class Change:
    """New things at some names; None where nothing is any more. All of them or none are on the disk."""

    entries: tuple[tuple[Folder, str, Folder | File | None], ...]


@dataclass
class Disk:
    """The tree below `place`, where everything was flushed, and what system calls have changed since."""

    place: Path
    root: Folder = field(init=False)
    first: dict[Folder, dict[str, Folder | File]] = field(default_factory=dict)
    """The entries of each folder that were on the disk."""
    changes: list[Change] = field(default_factory=list)
    flushes: list[tuple[int, Folder]] = field(default_factory=list)
    """How many changes there were when this folder was flushed."""

    def __post_init__(self) -> None:
        self.root = self._read(self.place)

    def repeat(self, call: Made) -> None:
        """Repeat a call that succeeded. Paths outside of the tree do not count."""
        if call.result < 0 or not call.paths or not all(path.is_relative_to(self.place) for path in call.paths):
            return
        paths = call.paths
        places = [self._find(path.parent) if path != self.place else None for path in paths]
        folder, name, there = places[0], paths[0].name, self._find(paths[0])
        match call.name:
            case "open" | "openat" if there is None:
                self._change((folder, name, File()))
            case "open" | "openat":
                assert not call.flags & os.O_TRUNC, f"{paths[0]} is written in place"
            case "write":
                assert isinstance(there, File), paths[0]
                there.content += call.data
            case "fsync" | "fdatasync" if isinstance(there, File):
                there.flushed = len(there.content)
            case "fsync" | "fdatasync":
                assert there is not None, paths[0]
                self.flushes.append((len(self.changes), there))
            case "mkdir" | "mkdirat":
                new = Folder()
                self.first[new] = {}
                self._change((folder, name, new))
            case "rmdir" | "unlink" | "unlinkat":
                self._change((folder, name, None))
            case "renameat2" if call.flags & _EXCHANGE:
                self._change((folder, name, self._find(paths[1])), (places[1], paths[1].name, there))
            case "rename" | "renameat" | "renameat2":
                self._change((folder, name, None), (places[1], paths[1].name, there))
            case "close":
                pass
            case other:
                raise AssertionError(f"the model knows no {other}")

    def write(self, place: Path, order: str, random: Random) -> None:
        """Write one tree that may be on the disk now, as `place`."""
        kept = {folder: dict(entries) for folder, entries in self.first.items()}
        for change in self._survivors(order, random):
            for folder, name, new in change.entries:
                if new is None:
                    kept[folder].pop(name, None)
                else:
                    kept[folder][name] = new
        _write(self.root, place, kept, random)

    def is_as_on(self, place: Path) -> bool:
        """Whether the running program sees there what the model says."""
        return _seen(self.root) == {
            str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()
        }

    def _survivors(self, order: str, random: Random) -> list[Change]:
        numbers = range(len(self.changes))
        certain = {
            number
            for number in numbers
            if any(number < before and self._is_in(number, folder) for before, folder in self.flushes)
        }
        if order == "journal":
            cut = random.randint(max(certain, default=-1) + 1, len(self.changes))
            return self.changes[:cut]
        lost: set[object] = set()
        left = []
        for number in numbers:
            keys = {
                folder if order == "folders" else (folder, name) for folder, name, _ in self.changes[number].entries
            }
            if number in certain or not (keys & lost or random.random() < 0.3):
                left.append(self.changes[number])
            else:
                lost |= keys
        return left

    def _is_in(self, number: int, folder: Folder) -> bool:
        return any(where is folder for where, _, _ in self.changes[number].entries)

    def _change(self, *entries: tuple[Folder | File | None, str, Folder | File | None]) -> None:
        for folder, name, new in entries:
            assert isinstance(folder, Folder), name
            if new is None:
                del folder.entries[name]
            else:
                folder.entries[name] = new
        self.changes.append(Change(entries))  # type: ignore[arg-type]

    def _find(self, path: Path) -> Folder | File | None:
        found: Folder | File | None = self.root
        for name in path.relative_to(self.place).parts:
            found = found.entries.get(name) if isinstance(found, Folder) else None
        return found

    def _read(self, place: Path) -> Folder:
        folder = Folder()
        for entry in place.iterdir():
            if entry.is_dir():
                folder.entries[entry.name] = self._read(entry)
            else:
                content = bytearray(entry.read_bytes())
                folder.entries[entry.name] = File(content, len(content))
        self.first[folder] = dict(folder.entries)
        return folder


def _seen(folder: Folder) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name, one in folder.entries.items():
        if isinstance(one, File):
            found[name] = bytes(one.content)
        else:
            found |= {f"{name}/{below}": content for below, content in _seen(one).items()}
    return found


def _write(folder: Folder, place: Path, kept: dict[Folder, dict[str, Folder | File]], random: Random) -> None:
    place.mkdir()
    for name, one in kept[folder].items():
        if isinstance(one, Folder):
            _write(one, place / name, kept, random)
        else:
            (place / name).write_bytes(_survived(one, random))


def _survived(file: File, random: Random) -> bytes:
    """All of it, what was flushed, a part, or zeros of the whole length."""
    sure, size = file.flushed, len(file.content)
    return random.choice(
        [
            bytes(file.content),
            bytes(file.content[:sure]),
            bytes(file.content[: random.randint(sure, size)]),
            bytes(file.content[:sure]) + bytes(size - sure),
        ]
    )
