"""One line of the doctor's report."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """How much it matters."""

    OK = "ok"
    NOTE = "note"
    """Works, and could be better or is worth knowing."""
    PROBLEM = "problem"
    """Would keep a run from working."""


@dataclass(frozen=True)
class Row:
    """What was looked at, what was found, and the fix."""

    what: str
    state: State
    text: str
    fix: str = ""


def ok(what: str, text: str) -> Row:
    """Nothing to do."""
    return Row(what, State.OK, text)


def note(what: str, text: str, fix: str) -> Row:
    """Works, but."""
    return Row(what, State.NOTE, text, fix)


def problem(what: str, text: str, fix: str) -> Row:
    """Does not work."""
    return Row(what, State.PROBLEM, text, fix)
