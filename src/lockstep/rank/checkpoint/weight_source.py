"""Where `load_weights` reads: a file as it is, or one of a state, whose SHA-256 is beside it and is checked."""

from __future__ import annotations

import os
from pathlib import Path

from lockstep.errors import UsageError
from lockstep.notices import say
from lockstep.protocol.state_files.folder import StateFolder, is_state, left_between
from lockstep.protocol.state_files.manifest import MODEL_FILE, Manifest, damage_of
from lockstep.protocol.state_files.whole_state import settled


def checked_source(path: Path) -> Path:
    """The file to read: for a state the one with its model, else `path` itself.

    Every byte of a file that a state's manifest names is read and compared with its SHA-256; again, when a program that saves
    replaced the state meanwhile.

    Raises:
        UsageError: when it is damaged, or the state has several models.
        WorldError: when the manifest cannot be read.
    """
    return settled(path, lambda: _checked(path))


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
