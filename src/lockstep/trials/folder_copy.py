"""A copy of the working directory, for runs that must not write to it where the system gives no private view of files.

Small entries are copied, large ones are linked: what a script writes into the latter is written for real, which is said
beforehand. The folders around it are there too, full of links, so that `../data` means the same.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MAX_BYTES = 256 << 20
MAX_FILES = 10_000
MEBI = 1 << 20


@dataclass(frozen=True)
class Extent:
    """The size of a folder's entry; counting stops once it is too large to copy."""

    num_bytes: int
    num_files: int


@dataclass(frozen=True)
class Selection:
    """Which entries of a folder are copied and which are linked, by name."""

    copied: tuple[str, ...]
    linked: tuple[str, ...]


def select(extents: Mapping[str, Extent], max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES) -> Selection:
    """Copy as many entries as possible, the small ones first.

    Invariant: every entry is either copied or linked; what is copied stays within the limits.
    """
    copied: list[str] = []
    num_bytes = num_files = 0
    for name, extent in sorted(extents.items(), key=lambda item: (item[1].num_bytes, item[1].num_files, item[0])):
        if num_bytes + extent.num_bytes <= max_bytes and num_files + extent.num_files <= max_files:
            num_bytes, num_files = num_bytes + extent.num_bytes, num_files + extent.num_files
            copied.append(name)
    return Selection(tuple(copied), tuple(sorted(extents.keys() - set(copied))))


def extents_of(folder: Path) -> dict[str, Extent]:
    """The size of each entry of a folder; links are not followed."""
    with os.scandir(folder) as entries:
        return {entry.name: _extent(Path(entry.path)) for entry in entries}


def _extent(path: Path) -> Extent:
    if path.is_symlink() or not path.is_dir():
        return Extent(path.lstat().st_size, 1)
    num_bytes = num_files = 0
    for place, folders, files in os.walk(path):
        num_files += len(files) + len(folders)
        for name in files:
            with suppress(OSError):
                num_bytes += (Path(place) / name).lstat().st_size
        if num_bytes > MAX_BYTES or num_files > MAX_FILES:
            break
    return Extent(num_bytes, num_files + 1)


def copy_folder(folder: Path, selection: Selection, root: Path) -> Path:
    """Make a copy of `folder` below `root`, under its own path, and return where it is.

    Args:
        folder: absolute, without links in it.
        selection: which of its entries to copy and to link.
        root: an empty folder.
    """
    place = root
    for parent, name in zip(reversed(folder.parents), folder.parts[1:], strict=True):
        with suppress(OSError), os.scandir(parent) as entries:
            for entry in entries:
                if entry.name != name:
                    (place / entry.name).symlink_to(entry.path)
        place /= name
        place.mkdir()
    for name in selection.linked:
        (place / name).symlink_to(folder / name)
    for name in selection.copied:
        _copy(folder / name, place / name, folder)
    return place


def _copy(source: Path, target: Path, folder: Path) -> None:
    """Copy files, folders and links; a link out of `folder` leads there from the copy too. Nothing else is data."""
    if source.is_symlink():
        leads_out = not source.resolve().is_relative_to(folder)
        target.symlink_to(source.resolve() if leads_out else source.readlink())
    elif source.is_dir():
        target.mkdir()
        for entry in source.iterdir():
            _copy(entry, target / entry.name, folder)
        shutil.copystat(source, target)
    elif source.is_file():
        with suppress(PermissionError):  # what the user cannot read, the script cannot either
            shutil.copy2(source, target)


def size_text(extent: Extent) -> str:
    """The size in words; sizes beyond the limit are not known."""
    if extent.num_bytes > MAX_BYTES:
        return f"more than {MAX_BYTES // MEBI} MiB"
    return f"{extent.num_files} files" if extent.num_files > MAX_FILES else f"{extent.num_bytes / MEBI:.0f} MiB"
