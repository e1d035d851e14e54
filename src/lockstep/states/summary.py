"""A state in one row: what its manifest says, and whether its files are all there. No content of a file is read."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from lockstep.checkpoint.manifest import GRADIENTS, NAME, Manifest, NewerState, damage_of
from lockstep.checkpoint.whole_state import open_state
from lockstep.errors import LockstepError, UsageError
from lockstep.states.places import Found

COMPLETE, DAMAGED, NEWER = "complete", "damaged", "newer"


@dataclass(frozen=True)
class Summary:
    """A row of `lockstep checkpoint ls`. What a damaged manifest no longer says is None."""

    run: str
    path: str
    step: int | None
    epochs: int | None
    """How many are finished."""
    inside_epoch: bool
    """Whether the next one had begun."""
    saved: str | None
    """When the manifest was written, ISO 8601; a copy may have another time."""
    size_bytes: int | None
    sha256: str | None
    """See `hash_of`."""
    files: str
    """`complete`, `damaged` or `newer` (a later lockstep wrote it)."""
    problem: str
    not_finite: str = ""
    """A tensor that is not finite; empty where all are that should be, and in states of versions that did not look."""

    def as_json(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self)


def summary_of(found: Found) -> Summary | None:
    """Look at a state; None when it was removed meanwhile."""
    try:
        place, manifest = open_state(found.path)
    except LockstepError as error:
        if not found.path.exists():
            return None
        kind = NEWER if isinstance(error, NewerState) else DAMAGED
        return Summary(found.run, str(found.path), None, None, False, None, None, None, kind, problem_of(error))
    lacking = incomplete(place, manifest)
    if lacking is not None and not place.exists():
        return None
    return Summary(
        run=found.run,
        path=str(found.path),
        step=_count(manifest.facts.get("step")),
        epochs=_count(manifest.facts.get("epochs")),
        inside_epoch=GRADIENTS in manifest.files,
        saved=saved_at(place),
        size_bytes=sum(file.size for file in manifest.files.values()),
        sha256=hash_of(manifest),
        files=DAMAGED if lacking else COMPLETE,
        problem=problem_of(lacking) if lacking else "",
        not_finite=manifest.not_finite,
    )


def incomplete(place: Path, manifest: Manifest) -> UsageError | None:
    """The first file that is missing or has another size."""
    problems = (damage_of(place / name, file, reads=False) for name, file in manifest.files.items())
    return next(filter(None, problems), None)


def hash_of(manifest: Manifest) -> str:
    """A SHA-256 of the files' own: equal for states with the same content, whatever ranks wrote them."""
    files = {name: file.sha256 for name, file in manifest.files.items()}
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def saved_at(place: Path) -> str | None:
    """When the manifest was written, in this machine's time."""
    try:
        return datetime.fromtimestamp((place / NAME).stat().st_mtime).astimezone().isoformat(timespec="seconds")
    except OSError:
        return None


def newest(states: list[Found]) -> Found:
    """The state of the highest step; where the manifests say nothing, the last by name. At least one must be given."""
    whole = [found for found in states if not found.is_aside] or states
    if len(whole) == 1:
        return whole[0]
    return max(whole, key=lambda found: (_step_of(found.path), found.path.name))


def _step_of(path: Path) -> int:
    try:
        return _count(open_state(path)[1].facts.get("step")) or 0
    except LockstepError:
        return -1


def problem_of(error: LockstepError) -> str:
    """What is wrong, without the fix."""
    return error.problem if isinstance(error, UsageError) else str(error)


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
