"""Where the runs of `verify` and `bench` see and write files, so that the user's own stay as they are.

The best is a private view, which the nursery makes for each run. Where the system gives none, each run works in a copy
of the working directory. With `in_place`, runs write where the script says. What cannot be isolated is reported before
the first run.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from samebits.errors import EnvironmentFailure
from samebits.machine.held_folder import remove_tree
from samebits.machine.private_view import ViewReport

MAX_BYTES = 256 << 20
MAX_FILES = 10_000
"""What a copy may hold; larger entries of the folder are links."""
MAX_NAMED = 4


@dataclass(frozen=True)
class Workplace:
    folder: Path | None = None
    """The working directory; None: that of this process."""
    original: Path | None = None
    """What `folder` is a copy of."""

    def script(self, path: Path | None) -> Path | None:
        """Where the script is there."""
        if path is None or self.folder is None or self.original is None or not path.is_absolute():
            return path
        inside = path.resolve().is_relative_to(self.original)
        return self.folder / path.resolve().relative_to(self.original) if inside else path

    def with_own_paths(self, text: str) -> str:
        """A message of the run with the user's own paths."""
        return text if self.folder is None else text.replace(str(self.folder), str(self.original))


class MakesViews(Protocol):
    """A nursery, or this process."""

    def make_view(self, folder: Path, num_runs: int = 1, /) -> ViewReport:
        """Give the next runs a private view of the file system."""


class Workplaces:
    """The workplaces of all runs, one for each.

    Args:
        maker: makes the views.
        base: a folder of its own, without links in its path.
        in_place: whether runs write where the script says.
        note: called with what cannot be kept apart, before the first run.
    """

    def __init__(self, maker: MakesViews, base: Path, in_place: bool, note: Callable[[str], None]) -> None:
        self._maker, self._in_place, self._note = maker, in_place, note
        self._layers, self._copy = base / "layers", base / "copy"
        self._noted: set[str] = set()
        self._has_view = False
        self._current, self._runs_left = Workplace(), 0

    def begin(self, num_runs: int = 1) -> Workplace:
        """Make a workplace for the next runs, which see each other's files; or return theirs.

        Raises:
            EnvironmentFailure: when there is no private view although there was one.
        """
        if not self._runs_left:
            self.remove()
            self._runs_left = num_runs
            if not self._in_place:
                self._current = self._make(num_runs)
        return self._current

    def end(self) -> None:
        """A run has ended: remove what it wrote, unless another one continues with it."""
        self._runs_left = max(self._runs_left - 1, 0)
        if not self._runs_left:
            self.remove()

    def remove(self) -> None:
        self._runs_left = 0
        for folder in (self._layers, self._copy):
            remove_tree(folder)

    def _make(self, num_runs: int) -> Workplace:
        """A view, or else a copy."""
        self._layers.mkdir(mode=0o700)
        report = self._maker.make_view(self._layers, num_runs)
        if report.problem and self._has_view:
            # Runs in a view and runs in a copy have other paths: their bits might differ for that alone.
            raise EnvironmentFailure(f"The private view of the files could not be made again: {report.problem}.")
        if not report.problem:
            self._has_view = True
            if report.real:
                self._note_once(
                    f"The runs write to copies of all files except these, which they really change: {_listed(report.real)}."
                )
            return Workplace()
        here = Path.cwd().resolve()
        self._copy.mkdir()
        copy = copy_folder(here, self._copy)
        linked = [path.name for path in here.iterdir() if not path.is_symlink() and (copy / path.name).is_symlink()]
        large = f" Too large to copy, only linked: {_listed(linked)}." if linked else ""
        self._note_once(
            f"This system has no private views of files ({report.problem}), so each run works in a copy of this "
            f"folder.{large} Writes {'there or ' * bool(linked)}outside this folder are real. To run the script in "
            f"place, add --in-place."
        )
        return Workplace(copy, here)

    def _note_once(self, sentence: str) -> None:
        if sentence not in self._noted:
            self._noted.add(sentence)
            self._note(sentence)


def copy_folder(folder: Path, root: Path) -> Path:
    """Copy `folder` below `root`, under its own path, and return where it is.

    Small entries are copied first, as far as `MAX_BYTES` and `MAX_FILES` go; the others are linked. The folders around it are
    there too, full of links, so that `../data` means the same.

    Args:
        folder: absolute, without links in it.
        root: an empty folder.
    """
    place = root
    for parent, name in zip(reversed(folder.parents), folder.parts[1:], strict=True):
        with suppress(OSError):
            for entry in [*parent.iterdir()]:
                if entry.name != name:
                    (place / entry.name).symlink_to(entry)
        place /= name
        place.mkdir()
    left_bytes, left_files = MAX_BYTES, MAX_FILES
    for size_bytes, num_files, entry in sorted((*_extent(entry), entry) for entry in folder.iterdir()):
        left_bytes, left_files = left_bytes - size_bytes, left_files - num_files
        if left_bytes < 0 or left_files < 0:
            (place / entry.name).symlink_to(entry)
        elif entry.is_dir() and not entry.is_symlink():
            shutil.copytree(entry, place / entry.name, symlinks=True, copy_function=_copy_file)
        else:
            _copy_file(entry, place / entry.name)
    return place


def _extent(path: Path) -> tuple[int, int]:
    """How many bytes and files it has; counting stops once it is too large to copy. Links are not followed."""
    size_bytes, num_files = path.lstat().st_size, 1
    for place, folders, files in os.walk(path) if not path.is_symlink() else ():
        num_files += len(files) + len(folders)
        for name in files:
            with suppress(OSError):
                size_bytes += (Path(place) / name).lstat().st_size
        if size_bytes > MAX_BYTES or num_files > MAX_FILES:
            break
    return size_bytes, num_files


def _copy_file(source: Path | str, target: Path | str) -> None:
    """Copy a file or a link; nothing else is data, and what the user cannot read, the script cannot either."""
    if Path(source).is_symlink() or Path(source).is_file():
        with suppress(PermissionError):
            shutil.copy2(source, target, follow_symlinks=False)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
