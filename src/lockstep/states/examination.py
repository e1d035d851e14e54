"""Whether a state is whole: every byte of it is read. For `lockstep checkpoint verify`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lockstep.checkpoint.folder import TRIES, identity_of
from lockstep.checkpoint.manifest import NAME, Manifest, NewerState, SavedFile, damage_of
from lockstep.checkpoint.whole_state import open_state
from lockstep.errors import LockstepError, UsageError
from lockstep.states.description import describe
from lockstep.states.places import Found
from lockstep.states.summary import problem_of
from lockstep.states.tensor_table import read_table


@dataclass(frozen=True)
class Damage:
    """What is wrong with one file."""

    file: str
    """Empty when it is not one file."""
    problem: str
    tensors: tuple[str, ...] = ()
    """Those that are surely lost; within a file that has its size, the hash does not say which are."""


@dataclass(frozen=True)
class Examined:
    """What was found out about a state."""

    run: str
    path: str
    files: int
    size_bytes: int
    damages: tuple[Damage, ...]
    others: tuple[str, ...]
    """What is in the folder and not in the manifest. Such a folder is loaded, but lockstep does not replace or remove it."""
    not_finite: str = ""
    """A tensor that is not finite; such a state may be whole."""

    @property
    def is_whole(self) -> bool:
        return not self.damages

    def as_json(self) -> dict[str, Any]:
        """For --json."""
        return {**asdict(self), "whole": self.is_whole}


def examine(found: Found) -> Examined | None:
    """Read every byte of a state; again, when another program replaced it meanwhile. None when one removed it.

    Raises:
        NewerState: when a later lockstep wrote it, so this one cannot tell.
    """
    for tries_left in reversed(range(TRIES)):
        before = identity_of(found.path)
        examined = _examined(found)
        if not examined.is_whole and not found.path.exists():
            return None
        if examined.is_whole or not tries_left or before == identity_of(found.path):
            return examined
    raise AssertionError  # the last try returns


def _examined(found: Found) -> Examined:
    try:
        place, manifest = open_state(found.path)
    except NewerState:
        raise
    except LockstepError as error:
        return Examined(found.run, str(found.path), 0, 0, (Damage(NAME, problem_of(error)),), ())
    named = sorted(manifest.files.items())
    damages = [
        Damage(name, problem.problem, _lost(place / name, file))
        for name, file in named
        if (problem := damage_of(place / name, file)) is not None
    ]
    if not damages:
        damages += _wrong_content(found.path)
    size = sum(file.size for _, file in named)
    others = tuple(_others(place, manifest))
    return Examined(found.run, str(found.path), len(named), size, tuple(damages), others, manifest.not_finite)


def _wrong_content(path: Path) -> Iterator[Damage]:
    """What lockstep does not write, although every hash fits: somebody has changed the state and sealed it again."""
    try:
        describe(path)
    except LockstepError as error:
        yield Damage("", problem_of(error))


def _lost(path: Path, file: SavedFile) -> tuple[str, ...]:
    """Tensors that are not in a damaged file any more, as far as its header tells."""
    if not file.tensors:
        return ()
    try:
        table = read_table(path)
    except UsageError:
        return file.tensors
    present = {row.name for row in table.rows} - set(table.cut_off())
    return tuple(name for name in file.tensors if name not in present)


def _others(place: Path, manifest: Manifest) -> Iterator[str]:
    try:
        names = sorted(entry.name for entry in place.iterdir())
    except OSError:
        return
    yield from (name for name in names if name != NAME and name not in manifest.files)
