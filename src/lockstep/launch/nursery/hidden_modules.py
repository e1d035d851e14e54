"""Whether a script's own folder has a module of the name of one that a waiting nursery has imported already.

`import click` means the script's own `click.py`, as its folder comes first. A process that has imported more than a nursery of
a cold start would give it the other one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib.machinery import all_suffixes
from pathlib import Path

from lockstep.launch.request import LaunchRequest

_SUFFIXES = tuple(all_suffixes())


def first_folder(request: LaunchRequest) -> Path:
    """Where the imports of the request's script look first."""
    return Path.cwd() if request.script is None else request.script.resolve().parent


def hidden_by(folder: Path, loaded: Mapping[str, object]) -> str:
    """The first of the modules `loaded` whose name means another one in `folder`; empty: none does."""
    here = os.path.realpath(folder)
    for name in sorted(_modules_in(folder)):
        if name in loaded and name != "__main__" and not _is_from(here, getattr(loaded[name], "__file__", None)):
            return name
    return ""


def _modules_in(folder: Path) -> Iterable[str]:
    """The names of the modules and packages in a folder."""
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.is_dir()) for entry in entries]
    except OSError:
        return
    for name, is_folder in found:
        if not is_folder and name.endswith(_SUFFIXES):
            yield name.partition(".")[0]
        elif is_folder and any((folder / name / f"__init__{suffix}").is_file() for suffix in _SUFFIXES):
            yield name


def _is_from(folder: str, file: str | None) -> bool:
    """Whether a module's file is in the folder, or its package is."""
    return file is not None and os.path.realpath(file).startswith(f"{folder}{os.sep}")
