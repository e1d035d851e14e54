"""What came of a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class State(StrEnum):
    """How a task ended."""

    OK = "ok"
    MISSED = "missed"
    """It ran, and a goal of speed was not reached."""
    FAILED = "FAILED"
    CUT_OFF = "cut off"
    """It did not end within its time, or there was none left for it."""
    NOT_HERE = "not here"
    """This machine lacks what it needs."""
    NO_TIME = "no time"
    """It was not begun, as it would not have ended."""


BAD = {State.FAILED, State.CUT_OFF}


@dataclass(frozen=True)
class Ended:
    """A process that has ended, or was ended."""

    code: int
    out: str
    err: str
    is_cut_off: bool = False


@dataclass(frozen=True)
class Verdict:
    """What that means."""

    state: State
    says: str
    """In a line."""
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """A task's row."""

    block: str
    task: str
    state: State
    says: str
    seconds: float
    figures: Mapping[str, Any] = field(default_factory=dict)
    output: str = ""
    """The end of what it printed, where it is bad."""
    is_compiled: bool | None = None
    """Whether samebits had its compiled part; None where that is the same for all tasks."""
