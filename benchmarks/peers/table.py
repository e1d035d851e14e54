"""What was measured, as a table: a line for each size, a column for each side, and whether we are ahead of the best peer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.cases import BY_TORCH, GLOO, ORDINARY, WINDOWS
from benchmarks.peers.contestants import OURS
from benchmarks.summary import Unit, amount_text

HEADINGS = {WINDOWS: "windows", ORDINARY: "handle", BY_TORCH: "dist"}


@dataclass
class Row:
    """One size on one number of ranks: nanoseconds of every side, round by round."""

    num_ranks: int
    what: str
    rounds: dict[str, list[float]] = field(default_factory=dict)

    def medians(self) -> Mapping[str, float]:
        """Of the sides that were measured."""
        return {side: median(times) for side, times in self.rounds.items() if times}

    def best_peer(self) -> str:
        """The quickest of the others; empty without any."""
        peers = {side: time for side, time in self.medians().items() if side not in OURS}
        return min(peers, key=lambda side: peers[side], default="")

    def ratio(self, side: str) -> float | None:
        """The best peer's time over ours: above 1 we are ahead."""
        found, peer = self.medians(), self.best_peer()
        return found[peer] / found[side] if peer and side in found else None


def table_of_peers(rows: Sequence[Row]) -> str:
    """For people. Times are medians of rounds."""
    peers = sorted({side for row in rows for side in row.rounds} - {*OURS, GLOO})
    sides = [*OURS, *peers, GLOO]
    head = ["ranks", "size", *(HEADINGS.get(side, side) for side in sides), "best peer", "over handle", "over dist", ""]
    lines = [head, *([str(row.num_ranks), row.what, *_cells(row, sides)] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if at == 1 else cell.rjust(w) for at, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def _cells(row: Row, sides: Sequence[str]) -> list[str]:
    found = row.medians()
    ratios = [row.ratio(side) for side in (ORDINARY, BY_TORCH)]
    verdict = "" if ratios[1] is None else "ahead" if ratios[1] >= 1 else "behind"
    times = [amount_text(found.get(side, 0.0), Unit.NS) or "-" for side in sides]
    return [*times, row.best_peer(), *("" if ratio is None else f"{ratio:.2f}x" for ratio in ratios), verdict]


def as_json(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Medians, ratios, and every round."""
    return [
        {
            "ranks": row.num_ranks,
            "what": row.what,
            "medians": row.medians(),
            "best_peer": row.best_peer(),
            "ratio": {side: row.ratio(side) for side in OURS},
            "rounds": row.rounds,
        }
        for row in rows
    ]
