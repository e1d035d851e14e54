"""A case of a finding in a run: a line of the run's `findings.jsonl`, which launcher and ranks add to.

What is known about each finding is in `samebits.launcher.diagnosis.findings`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samebits.protocol.run_folder import add_line, read_lines

_SECONDS = re.compile(r"\b\d+ s\b")
_NAME = re.compile(r"[a-z-]+")
_LATEST = 1e18
"""No time is later; a longer number is none that a float can hold."""


@dataclass(frozen=True)
class Case:
    finding: str
    """Its name: `stopped-process`."""
    said: str
    """What was printed, on one line."""
    ranks: tuple[int, ...] = ()
    """Who is to blame, or concerned; none where all are."""
    time_s: float = field(default_factory=time.time)
    """Since 1970."""

    def add_to(self, path: Path) -> None:
        """Keep it; a disk that is full loses the record, not the run."""
        add_line(path, {"time": self.time_s, "finding": self.finding, "ranks": list(self.ranks), "said": self.said})


def cases_in(path: Path) -> list[Case]:
    """The cases in a run's file, oldest first; what is not one is left out."""
    return [case for entry in read_lines(path) if (case := _decoded(entry)) is not None]


def names_of(cases: Iterable[Case]) -> list[str]:
    """The findings of these cases, each once, in their order."""
    return list(dict.fromkeys(case.finding for case in cases))


def latest(cases: Iterable[Case]) -> list[Case]:
    """Of a wait that was reported again after twice the time, the last report."""
    return list({(case.finding, case.ranks, _SECONDS.sub("", case.said)): case for case in cases}.values())


def _decoded(entry: dict[str, Any]) -> Case | None:
    finding, said, ranks, at = (entry.get(key) for key in ("finding", "said", "ranks", "time"))
    if not (
        isinstance(finding, str) and isinstance(said, str) and isinstance(ranks, list) and _NAME.fullmatch(finding)
    ):
        # Anybody may have written the folder, so nothing in it is trusted.
        return None
    return Case(
        finding,
        " ".join(said.splitlines()),
        tuple(rank for rank in ranks if isinstance(rank, int)),
        float(at) if isinstance(at, int | float) and abs(at) < _LATEST else 0.0,
    )
