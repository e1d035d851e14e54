"""Files that a run under `lockstep verify` or `bench` writes elsewhere, so that the user's own stay as they are.

A script may read back what it has written, so this process remembers where it is.
"""

from __future__ import annotations

import os
from pathlib import Path

_places: dict[str, Path] = {}


def put_elsewhere(path: str | os.PathLike[str], place: Path) -> Path:
    """Remember that what the script calls `path` is written to `place`, which is returned."""
    _places[_key(path)] = place
    return place


def found_at(path: str | os.PathLike[str]) -> Path:
    """Where to read what the script calls `path`: elsewhere, if something was put there, else where it says."""
    place = _places.get(_key(path)) if _places else None
    return place if place is not None and place.exists() else Path(path)


def _key(path: str | os.PathLike[str]) -> str:
    return os.path.abspath(path)  # noqa: PTH100 - a name only, even of what does not exist
