"""Where `load_weights` reads: a file as it is, or one of a state, whose SHA-256 is beside it and is checked."""

from __future__ import annotations

import os
from pathlib import Path

from lockstep.checkpoint.folder import TRIES, StateFolder, identity_of, is_state, left_between
from lockstep.checkpoint.manifest import MODEL_FILE, Manifest, damage_of
from lockstep.errors import LockstepError, UsageError
from lockstep.notices import say


def checked_source(path: Path) -> Path:
    """The file to read: for a state the one with its model, else `path` itself.

    Every byte of a file that a state's manifest names is read and compared with its SHA-256.

    Raises:
        UsageError: when it is damaged, or the state has several models.
        WorldError: when the manifest cannot be read.
    """
    for tries_left in reversed(range(TRIES)):
        before = _folder_of(path)
        try:
            return _checked(path)
        except LockstepError:
            if not tries_left or before == _folder_of(path):
                raise
    raise AssertionError  # the last try returns or raises


def _folder_of(path: Path) -> tuple[int, int] | None:
    """Which folder is there: a program that saves may replace it while it is read, and then it is read again."""
    return identity_of(path if path.is_dir() else path.parent)


def _checked(path: Path) -> Path:
    if is_state(path) or not os.path.lexists(path):
        place, name = path, ""
    elif path.is_file() and is_state(path.parent):
        place, name = path.parent, path.name
    else:
        return path
    state = StateFolder(place)
    found = state.read_manifest()
    if found is None:
        return path
    folder, manifest = found
    if folder != state.target:
        say(left_between(state.target, folder))
    name = name or _model_of(folder, manifest)
    expected = manifest.files.get(name)
    if expected is not None and (problem := damage_of(folder / name, expected)):
        raise problem
    return folder / name


def _model_of(folder: Path, manifest: Manifest) -> str:
    names = [name for name in manifest.files if MODEL_FILE.fullmatch(name)]
    if len(names) == 1:
        return names[0]
    if not names:
        raise UsageError(f"{folder} has no model.", "Name a file of weights.")
    which = ", ".join(str(folder / name) for name in names)
    raise UsageError(f"{folder} holds {len(names)} models.", f"Name one of them: {which}.")
