"""Which source files are the user's: those below the folder of the script, but for installed packages.

One rule for all who ask: messages that name the user's line, the launcher that reads what a script imports, and the look at
what a script keeps. A file elsewhere is somebody else's, whoever wrote it: on PYTHONPATH, behind a `.pth`, of an editable
install, or on a cluster's module path.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = f"{Path(__file__).parents[1]}/"
_PYTHONS = tuple({f"{path(sysconfig.get_path('stdlib'))}/" for path in (os.path.abspath, os.path.realpath)})
_INSTALLED = ("/site-packages/", "/dist-packages/")


def is_library(file: str) -> bool:
    """Whether a file is Python's, this package's, or lies in a folder of installed packages; so does code without a file."""
    return file.startswith(("<", PACKAGE, *_PYTHONS)) or any(folder in file for folder in _INSTALLED)


@dataclass(frozen=True)
class ScriptFiles:
    """Those of one script."""

    folders: tuple[str, ...]
    """The script's folder, as it was named and without links, each with a slash at its end."""

    @classmethod
    def beside(cls, script: str | os.PathLike[str]) -> ScriptFiles:
        """The files of the script at that path."""
        return cls.below(Path(script).absolute().parent)

    @classmethod
    def below(cls, folder: str | os.PathLike[str]) -> ScriptFiles:
        """Those below a folder."""
        paths = (str(Path(folder).absolute()), os.path.realpath(folder))
        return cls(tuple(dict.fromkeys(f"{path.rstrip('/')}/" for path in paths)))

    def has(self, file: str) -> bool:
        """Whether a source file, named by its absolute path, is the user's."""
        return file.startswith(self.folders) and not is_library(file)

    def innermost(self, files: Sequence[str]) -> int | None:
        """The place in `files`, the innermost first, of the user's line; else of the first that is no library's."""
        places = [place for place, file in enumerate(files) if not is_library(file)]
        return next((place for place in places if self.has(files[place])), places[0] if places else None)


def running_script() -> ScriptFiles:
    """The files of the script that this process runs."""
    main: Any = sys.modules.get("__main__")
    return _running(getattr(main, "__file__", None), getattr(main, "__package__", None))


@cache
def _running(file: str | None, package: str | None) -> ScriptFiles:
    # [Note: whose folder it is without a script]
    # A notebook has no file, and a command such as pytest one of its own among installed packages: the user's files are then
    # those of the working directory. A module that `-m` runs lies somewhere in its package, whose folder counts.
    place = None if file is None or is_library(file) else Path(file).absolute()
    if place is None or place.parent == Path(sys.prefix, "bin"):
        return ScriptFiles.below(Path.cwd())
    levels = package.count(".") if package else 0
    return ScriptFiles.below(place.parents[min(levels, len(place.parents) - 1)])
