"""The row `lanes in another order`: the steps once more on one rank, with the lanes of each step from the last to the first.

A lane that depends on nothing but its samples has the same gradient then, and sums have a fixed order. So a difference proves
that lanes hand something on. Equality proves little: a script that only counts lanes is the same from both ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from samebits.launcher.trials.trials import Trial, Trials
from samebits.protocol.run_folder import read_json
from samebits.verify.cause import ADVICE
from samebits.verify.comparison import comparable, first_difference
from samebits.verify.evidence import Evidence, ItemAtStep, read_evidence


class Order(StrEnum):
    """What the row found."""

    SAME = "same"
    DIFFERS = "differs"
    FAILS = "fails"
    """The script fails in this order only."""
    NOT_TRIED = "not tried"


@dataclass(frozen=True)
class LaneOrder:
    """The verdict."""

    found: Order
    why: str = ""
    """Why it was not tried, or how the script failed."""
    place: ItemAtStep | None = None
    """Where the first difference is."""
    handed_on: tuple[str, ...] = ()
    """What a look saw lanes hand on, each with its line."""

    @property
    def speaks_against(self) -> bool:
        return self.found in (Order.DIFFERS, Order.FAILS)

    @property
    def sentence(self) -> str:
        """What was found; empty for nothing that a person must know."""
        if self.found is Order.DIFFERS:
            what = ", ".join(self.handed_on) or "something"
            return f"lanes in another order: the bits differ from {self.place} on, so lanes hand on {what}. {ADVICE}"
        if self.found is Order.FAILS:
            return f"lanes in another order: the script fails, so a lane needs what the one before it left. {ADVICE}\n{self.why}"
        return ""


def not_tried(why: str) -> LaneOrder:
    return LaneOrder(Order.NOT_TRIED, why)


def try_another_order(trials: Trials, lanes: int, wanted: Mapping[str, Any], reference: Evidence) -> LaneOrder:
    """Make the run, and compare it.

    Args:
        trials: makes runs.
        lanes: of the run and of the reference.
        wanted: what the reference was asked to record.
        reference: of a run in the usual order.
    """
    if lanes == 1:
        return not_tried("there is one lane")
    trial = trials.run("lanes in another order", 1, lanes, {**wanted, "reversed": True})
    evidence = read_evidence(trial.folder, trial.num_processes)
    if trial.outcome.exit_code and not evidence.end.over:
        return LaneOrder(Order.FAILS, trial.outcome.block or f"It ended with exit code {trial.outcome.exit_code}.")
    if not evidence.end.is_reversed:
        return not_tried("the strategy or the library's loop has an order of its own")
    difference = first_difference(comparable([reference, evidence]))
    if difference is None:
        return LaneOrder(Order.SAME)
    return LaneOrder(Order.DIFFERS, place=difference.place, handed_on=_seen(trial))


def _seen(trial: Trial) -> tuple[str, ...]:
    found = read_json(trial.folder.result).get("handed_on")
    return tuple(map(str, found)) if isinstance(found, list) else ()
