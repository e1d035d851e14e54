"""The rows of the table: which items each one compares. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lockstep.protocol.recording import AT_END
from lockstep.verify.comparison import Cell, cell
from lockstep.verify.evidence import Evidence, Kind, Place

END, AGAIN = "end", "again"
NAMES = {
    Kind.INITIAL: "initial values",
    Kind.RESUMED: "goes on with",
    Kind.SAMPLES: "samples",
    Kind.LOSS: "losses",
    Kind.GRADIENT: "gradients",
    Kind.NORM: "gradient norms",
    Kind.BUFFER: "buffers",
    Kind.PARAMETER: "parameters",
    Kind.OPTIMIZER: "optimizer",
    Kind.SCRIPT: "script's own",
    Kind.VALUE: "logged values",
}
"""Rows of what was recorded in steps."""
ONE_PER_STEP = (Kind.LOSS, Kind.NORM)


@dataclass(frozen=True)
class Row:
    """Items that are compared over all runs; `cells` are in the order of the runs."""

    key: str
    """The kind of item; "end" for everything after the last step, "again" for samples that were fetched once more."""
    title: str
    num_items: int
    cells: tuple[Cell, ...]

    @property
    def in_each_step(self) -> bool:
        """Whether its items come in every step."""
        return self.key in NAMES and self.key not in (Kind.INITIAL, Kind.RESUMED)


def rows_of(runs: Sequence[Evidence]) -> list[Row]:
    """The rows that have anything in them; the first run is what the others are compared with."""
    found = [_row(kind, name, _of_steps(kind), runs) for kind, name in NAMES.items()]
    found.append(_row(END, "at the end", lambda place: place.step == AT_END and place.kind is not Kind.AGAIN, runs))
    found.append(_row(AGAIN, "samples again", lambda place: place.kind is Kind.AGAIN, runs))
    return [row for row in found if row.num_items]


def _of_steps(kind: Kind) -> Callable[[Place], bool]:
    return lambda place: place.kind is kind and place.step != AT_END


def _row(key: str, name: str, belongs: Callable[[Place], bool], runs: Sequence[Evidence]) -> Row:
    cells = tuple(cell(belongs, run, runs[0]) for run in runs)
    count = max(one.num_items for one in cells)
    return Row(key, name if key in ONE_PER_STEP and count == 1 else f"{name} ({count})", count, cells)
