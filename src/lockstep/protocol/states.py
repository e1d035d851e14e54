"""The states of a run that saves by itself: a folder for each, named by its step."""

from __future__ import annotations

import re
from pathlib import Path

_STATE = re.compile(r"step-(\d{8,})")


def state_name(step: int) -> str:
    """The name of the state after `step`."""
    return f"step-{step:08d}"


def step_of(name: str) -> int | None:
    """The step after which the state `name` was saved; None when that is no name of a state."""
    found = _STATE.fullmatch(name)
    return int(found[1]) if found else None


def newest_step(place: Path) -> int | None:
    """The step of the newest state below `place`, by its name only; None when there is none."""
    names = [path.name for path in place.iterdir()] if place.is_dir() else []
    return max((step for name in names if (step := step_of(name)) is not None), default=None)
