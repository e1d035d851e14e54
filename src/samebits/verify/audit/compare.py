"""The first difference between what a record says and what was made, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from samebits.protocol.record.difference import StepDifference, step_difference
from samebits.protocol.record.lines import CHAIN
from samebits.protocol.record.reading import Record

CODE = frozenset(("script", "arguments", "files", "commit", "changes"))
"""Conditions that the auditor has chosen: where they differ, the record is of another program."""
MOST_NAMED = 3


def first_difference(recorded: Record, made: Record, after: int, last: int) -> tuple[StepDifference | None, int]:
    """The first step behind `after`, up to `last`, that differs; and how many were compared."""
    count = 0
    for step in recorded.lines:
        if after < step <= last:
            there = recorded.step(step)
            assert there is not None
            if (found := step_difference(there, made.step(step))) is not None:
                return found, count
            count += 1
    return None, count


def conditions_apart(recorded: Mapping[str, Any], made: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Conditions that differ, as sentences: of the machine, and of the program.

    The second are the auditor's own choice: another program with other bits is no match.
    """
    machine: list[str] = []
    code: list[str] = []
    for key in dict.fromkeys((*recorded, *made)):
        there, here = recorded.get(key), made.get(key)
        if key != CHAIN and there != here:
            (code if key in CODE else machine).append(_apart(key, there, here))
    return machine, code


def _apart(key: str, there: Any, here: Any) -> str:
    if isinstance(there, dict) and isinstance(here, dict):
        names = [name for name in dict.fromkeys((*there, *here)) if there.get(name) != here.get(name)]
        return f"{key} differ: {_some(names)}"
    if isinstance(there, list) and isinstance(here, list):
        names = sorted({str(one) for one in there} ^ {str(one) for one in here})
        return f"{key} differ: {_some(names)}"
    if key in ("arguments", "changes", "build", "commit"):
        return f"the {'changes since the commit' if key == 'changes' else key} differ{'' if key.endswith('s') else 's'}"
    return f"{key} {there} in the record, {here} here"


def _some(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def files_apart(recorded: Mapping[str, str], made: Mapping[str, str]) -> list[str]:
    """The files of a state that differ, or that only one has."""
    return sorted(name for name in {*recorded, *made} if recorded.get(name) != made.get(name))


def flipped(line: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A step's line with one bit less right: what a comparison must find."""
    for key in ("data", "ids"):
        if text := str(line.get(key, "")):
            digit = format(int(text[0], 16) ^ 1, "x") if text[0] in "0123456789abcdef" else "0"
            yield {**line, key: digit + text[1:]}
    yield {**line, "loss": [0.1, *(line["loss"] if isinstance(line.get("loss"), list) else ())]}
