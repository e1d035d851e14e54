"""The first difference between what a record says and what was made, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from samebits.protocol.record.lines import CHAIN, STEP
from samebits.protocol.record.reading import Record

WORDS = {
    "from": "steps without a backward before it",
    "epoch": "the epoch",
    "ids": "which samples",
    "data": "what is in the samples",
    "loss": "the loss",
    "lr": "the learning rate",
    "scale": "the loss scale",
}
"""In the order in which a difference spreads in a step."""
CODE = frozenset(("script", "arguments", "files", "commit", "changes"))
"""Conditions that the auditor has chosen: where they differ, the record is of another program."""
MOST_NAMED = 3


@dataclass(frozen=True)
class StepDifference:
    """A step of which a record says something else than what was made."""

    step: int
    key: str
    """Of `WORDS`; empty where the step was not made."""
    recorded: Any = None
    made: Any = None
    lanes: tuple[int, ...] = ()
    """Those whose samples differ, as far as the record has digits of each lane."""

    @property
    def text(self) -> str:
        """`the loss of step 38 is 0.5 in the record, and 0.25 here`."""
        if not self.key:
            return f"step {self.step} was not made here, or without a backward"
        if self.key in ("ids", "data"):
            lanes = f", in lane{'s' * (len(self.lanes) > 1)} {', '.join(map(str, self.lanes))}" if self.lanes else ""
            what = "has other samples" if self.key == "ids" else "has samples with other contents"
            return f"step {self.step} {what} here than in the record{lanes}"
        return f"{WORDS[self.key]} of step {self.step} is {_said(self.recorded)} in the record, and {_said(self.made)} here"


def _said(value: Any) -> str:
    if isinstance(value, list) and len(value) == 1:
        return str(value[0])
    return "nothing" if value is None else str(value)


def step_difference(recorded: Mapping[str, Any], made: Mapping[str, Any] | None) -> StepDifference | None:
    """What differs between two lines about one step, links aside; None: nothing."""
    step = recorded[STEP]
    if made is None:
        return StepDifference(step, "")
    # As they are written: -0.0 is not 0.0, and true is not 1.
    keys = [key for key in (*WORDS, "lanes") if repr(recorded.get(key)) != repr(made.get(key))]
    if not keys:
        return None
    key = keys[0] if keys[0] in WORDS else "data"
    lanes = lanes_apart(str(recorded.get("lanes", "")), str(made.get("lanes", "")))
    return StepDifference(step, key, recorded.get(key), made.get(key), lanes if key in ("ids", "data") else ())


def lanes_apart(there: str, here: str) -> tuple[int, ...]:
    """The lanes whose digits differ; none where one side has digits of other lanes, or of none."""
    theirs, mine = there.split("-"), here.split("-")
    if len(theirs) != len(mine):
        return ()
    return tuple(lane for lane, (one, other) in enumerate(zip(theirs, mine, strict=True)) if one != other)


def first_difference(recorded: Record, made: Record, after: int, last: int) -> tuple[StepDifference | None, int]:
    """The first step behind `after`, up to `last`, that differs; and how many were compared."""
    count = 0
    for step in recorded.lines:
        if after < step <= last:
            there = recorded.step(step)
            assert there is not None
            here = made.step(step)
            if here is not None or step <= made.last or made.last < last:
                found = step_difference(there, here)
                if found is not None:
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
