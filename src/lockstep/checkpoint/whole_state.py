"""A state that is read without a run: found, and its files checked byte by byte."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from lockstep.checkpoint.folder import TRIES, StateFolder, identity_of
from lockstep.checkpoint.manifest import CHANGED, NAME, OLDER, Manifest, damage_of
from lockstep.errors import LockstepError, UsageError


def open_state(path: str | os.PathLike[str]) -> tuple[Path, Manifest]:
    """The folder, which is `.NAME.previous` where a program ended while it replaced `path`, and its manifest.

    Raises:
        UsageError: when the manifest is missing or damaged.
        NewerState: when it is of a newer version.
    """
    folder = StateFolder(path)
    found = folder.read_manifest()
    if found is None:
        raise UsageError(f"{folder.target} has no {NAME}.", OLDER)
    return found


def whole_state(
    path: str | os.PathLike[str], needed: Callable[[Manifest], Iterable[str]] = lambda manifest: manifest.files
) -> tuple[Path, Manifest]:
    """The folder and the manifest of a state; again, when another program replaced it meanwhile.

    Args:
        path: the state.
        needed: which files to check; all by default.

    Raises:
        UsageError: when there is none, it is damaged, or a needed file is not in it.
    """
    target = Path(path)
    for tries_left in reversed(range(TRIES)):
        before = identity_of(target)
        try:
            return _checked(target, needed)
        except LockstepError:
            if not tries_left or before == identity_of(target):
                raise
    raise AssertionError  # the last try returns or raises


def _checked(target: Path, needed: Callable[[Manifest], Iterable[str]]) -> tuple[Path, Manifest]:
    place, manifest = open_state(target)
    for name in needed(manifest):
        if name not in manifest.files:
            raise UsageError(f"{place} is not a state: its manifest does not name {name}.", CHANGED)
        if problem := damage_of(place / name, manifest.files[name]):
            raise problem
    return place, manifest
