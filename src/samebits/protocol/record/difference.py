"""Where two lines about one step differ, in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from samebits.protocol.record.lines import STEP

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
