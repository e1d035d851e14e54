"""What `verify` found, as plain values: shown by `report`, printed as JSON by `--json`."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from samebits.protocol.recording import AT_END
from samebits.verify.comparison import END, Difference, Row
from samebits.verify.deviation import Deviation
from samebits.verify.evidence import ItemAtStep
from samebits.verify.lane_order import LaneOrder, Order
from samebits.verify.plain import PLAIN, Plain, sentence
from samebits.verify.repeat.operators import Parting

CANNOT_TELL = 125
"""The exit code with which `git bisect run` skips a commit: nothing was compared."""


@dataclass(frozen=True)
class Run:
    """One of the compared runs."""

    ranks: int
    steps: int
    """Steps that were recorded."""
    seconds: float
    reached_end: bool = True
    """Whether the script reached its end."""
    why_not: str = ""
    """Why it did not: one sentence without a full stop."""


@dataclass(frozen=True)
class Explained:
    """The first difference, looked at closely."""

    difference: Difference
    left: str
    """Where the left value comes from: "1 rank", or "rank 0 of 2"."""
    right: str
    deviation: Deviation | None
    """None when there are no numbers to compare."""
    values: tuple[str, str] | None
    """Both values as text, if they are not tensors."""
    cause: str
    repeatable: bool
    """Whether both sides gave the same bits when they were run again."""
    norms: tuple[float, float] | None = None
    """The norms of both sides, if one is a file, so that no elements can be compared."""


@dataclass(frozen=True)
class Against:
    """The file that the runs are compared with."""

    path: str
    facts: tuple[str, ...]
    """What differs, each as `torch 2.12.0 there, 2.13.0 here`."""
    steps: int
    """Steps that are compared."""
    same: bool = True
    """Whether every bit is the same; also False if it was not compared."""


@dataclass(frozen=True)
class Failed:
    """A run that did not end well, so there is nothing to compare."""

    label: str
    """Which run: "plain, 4 lanes", "2 ranks"."""
    text: str
    """The failure as the launcher reports it."""
    exit_code: int
    """1, or 2 when the script is used wrongly on any number of ranks."""


@dataclass
class Result:
    """Everything that `verify` has to say. Filled in as the runs end."""

    title: str
    ranks: tuple[int, ...]
    threads: int
    """Per rank, as the ranks had them."""
    device: str
    steps_wanted: int
    lanes: int = 0
    lanes_named: bool = True
    """Whether the script or the command line named the lanes."""
    usual_lanes: set[int] = field(default_factory=set)
    """Those of `samebits run` on these numbers of ranks where nobody names any."""
    numerics: str = "exact"
    """As the script or the command line chose it."""
    allow: tuple[str, ...] = ()
    """Operators that may compute without a deterministic form."""
    not_exact: str = ""
    """Why equal bits are not promised at all (see `samebits.protocol.arithmetic`); empty where they are."""
    plain: Plain | None = None
    accepted: tuple[str, ...] = ()
    """What of `plain.ACCEPTABLE` a person accepts: they do not make the exit code 1."""
    runs: list[Run] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    lane_order: LaneOrder | None = None
    """What became of the bits where the lanes came in another order."""
    first_nan: ItemAtStep | None = None
    """Where a NaN appears first."""
    difference: Explained | None = None
    operator: Parting | str = ""
    """With --where the first operator that differs; or why it is not known."""
    against: Against | None = None
    saved_to: str = ""
    """The file that the bits were written to."""
    not_saved_to: str = ""
    """The file that was not written because ranks have different bits."""
    failed: Failed | None = None
    folder: str = ""
    """Where the runs are kept; empty when they were removed."""
    kept: str = ""
    """The same as a sentence."""

    @property
    def exact(self) -> bool:
        """Whether equal bits were promised at all."""
        return self.numerics != "fast"

    @property
    def num_steps(self) -> int:
        """Steps that every run has recorded."""
        return min((run.steps for run in self.runs), default=0)

    @property
    def num_items(self) -> int:
        """The number of different tensors and values in each step."""
        return sum(row.num_items for row in self.rows if row.in_each_step)

    @property
    def num_items_at_end(self) -> int:
        """The number of different tensors and values after the last step."""
        return sum(row.num_items for row in self.rows if row.key == END)

    @property
    def reached_end(self) -> bool:
        """Whether the script reached its end on every number of ranks."""
        return all(run.reached_end for run in self.runs)

    @property
    def same_on_all_ranks(self) -> bool:
        """Whether all runs were made and have the same bits."""
        if self.failed is not None or len(self.runs) != len(self.ranks):
            return False
        return all(cell.differs_at is None for row in self.rows for cell in row.cells[: len(self.runs)])

    @property
    def same_bits(self) -> bool:
        """Whether all runs were made and no bit differs, neither from another run nor from the file."""
        return self.same_on_all_ranks and self.difference is None

    @property
    def proved(self) -> bool:
        """Whether nothing speaks against the script."""
        if self.lane_order is not None and self.lane_order.speaks_against:
            return False
        return self.same_bits and self.plain is not None and (self.plain.agrees or self.accepts_plain)

    @property
    def accepts_plain(self) -> bool:
        """Whether a row `plain` that does not agree is accepted."""
        return self.plain is not None and not self.plain.agrees and PLAIN in self.accepted

    @property
    def exit_code(self) -> int:
        """0 only when everything was compared and is right."""
        if self.failed is not None:
            return self.failed.exit_code
        return 0 if self.proved else 1

    def not_proved(self) -> list[str]:
        """What this proof does not cover, in plain words."""
        missing = [f"steps after step {self.num_steps}"]
        if self.num_steps < self.steps_wanted:
            missing = [f"{self.steps_wanted} steps: the script ended after {self.num_steps}"]
        if self.first_nan is not None:
            missing.append(f"anything from {self.first_nan.when} on, where NaN begins ({self.first_nan.item})")
        return [
            *missing,
            *self._not_reached(),
            *([] if self.exact else ["that another run has these bits: numerics is fast"]),
            *(
                f"what passes through {name}, which --allow lets compute without a deterministic form"
                for name in self.allow
            ),
            f"lanes other than {self.lanes}, threads other than {self.threads}, another batch size",
            *self._other_orders(),
            *self._elsewhere(),
            "code that was not reached in these steps" + (" and after them" if self.reached_end else ""),
            "what has no state_dict: printed text, files, counters of the script",
        ]

    def _other_orders(self) -> list[str]:
        order = self.lane_order
        untried = order is not None and order.found is Order.NOT_TRIED and self.lanes > 1
        return [f"lanes in another order: {order.why}"] if untried and order is not None and order.why else []

    def _elsewhere(self) -> list[str]:
        """What was not run on: of other CPUs it knows how they could be shown."""
        if self.numerics == "portable":
            return [
                "another x86-64 CPU, until --save here and --against there have compared them",
                "another version of torch, CUDA",
            ]
        return [
            "other hardware, another version of torch or its libraries" + (", CUDA" if self.device == "cpu" else "")
        ]

    def _not_reached(self) -> list[str]:
        """The end of the script, if a run did not reach it."""
        missed = [run for run in self.runs if not run.reached_end]
        if not missed:
            return []
        when = f"when its loops ended after step {self.num_steps}"
        return [f"the end of the script, which it did not reach {when}: {missed[0].why_not}"]

    def as_json(self) -> dict[str, Any]:
        """One object of strings, finite numbers, lists and objects; a number that is not finite is null."""
        record: dict[str, Any] = finite(self._facts())
        return record

    def _facts(self) -> dict[str, Any]:
        return {
            "script": self.title,
            "proved": self.proved,
            "same_bits": self.same_bits,
            "exit_code": self.exit_code,
            "ranks": list(self.ranks),
            "lanes": self.lanes,
            "lanes_named": self.lanes_named,
            "not_exact": self.not_exact or None,
            "threads": self.threads,
            "numerics": self.numerics,
            "allow": list(self.allow),
            "device": self.device,
            "steps": self.num_steps,
            "steps_wanted": self.steps_wanted,
            "items": self.num_items,
            "items_at_end": self.num_items_at_end,
            "reached_end": self.reached_end,
            "plain": {**asdict(self.plain), "agrees": self.plain.agrees, "says": sentence(self.plain)}
            if self.plain is not None
            else None,
            "lane_order": {**asdict(self.lane_order), "place": str(self.lane_order.place or "") or None}
            if self.lane_order is not None
            else None,
            "runs": [asdict(run) for run in self.runs],
            "accepted": list(self.accepted),
            "rows": [row_as_json(row) for row in self.rows],
            "first_nan": str(self.first_nan) if self.first_nan is not None else None,
            "against": asdict(self.against) if self.against is not None else None,
            "saved_to": self.saved_to or None,
            "difference": difference_as_json(self.difference) if self.difference is not None else None,
            "operator": asdict(self.operator) if isinstance(self.operator, Parting) else None,
            "operator_unknown": (self.operator or None) if isinstance(self.operator, str) else None,
            "failed": asdict(self.failed) if self.failed is not None else None,
            "not_proved": self.not_proved(),
            "folder": self.folder or None,
        }


def finite(value: Any) -> Any:
    """The value with null for numbers that are not finite, which JSON has no word for."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def row_as_json(row: Row) -> dict[str, Any]:
    """A row of the table."""
    cells = [
        {
            **asdict(one),
            "differs": one.differs_at is not None,
            "differs_at": one.differs_at if row.in_each_step else None,
        }
        for one in row.cells
    ]
    return {"kind": row.key, "num_items": row.num_items, "cells": cells}


def difference_as_json(explained: Explained) -> dict[str, Any]:
    """The first difference."""
    difference = explained.difference
    return {
        "step": None if difference.place.step == AT_END else difference.place.step,
        "when": difference.place.when,
        "item": difference.place.item,
        "layer": difference.place.layer,
        "kind": difference.place.kind,
        "left": explained.left,
        "right": explained.right,
        "among_replicas": difference.among_replicas,
        "items_of_the_step": len(difference.places),
        "deviation": asdict(explained.deviation) if explained.deviation is not None else None,
        "values": list(explained.values) if explained.values is not None else None,
        "norms": list(explained.norms) if explained.norms is not None else None,
        "repeatable": explained.repeatable,
        "usual_cause": explained.cause,
    }
