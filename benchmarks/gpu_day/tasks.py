"""A task: one process, what it needs, how long it may take, and what its output means."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu_day.hardware import Hardware
from benchmarks.gpu_day.judging import Judge, by_its_word, ends_well

ROOT = Path(__file__).parents[2]
PROGRAMS = "benchmarks.gpu_day.programs"
EXAMPLES = ROOT / "examples"
REAL = "real GPUs"
"""A need that pretended ones do not meet."""
COMPILED = "samebits's compiled part"
"""A need that may be met only after a while: see `building`."""
BLOCK_S = 600.0
SHARE = {"SAMEBITS_SHARE_GPU": "4"}
"""Without effect where there is a GPU for each rank."""


@dataclass(frozen=True)
class Task:
    """What to run, in an empty folder unless it says otherwise."""

    name: str
    words: Sequence[str]
    judge: Judge = ends_well
    limit_s: float = 120.0
    needs: Sequence[str] = ()
    """Tools of `Hardware`, and REAL."""
    variables: Mapping[str, str] = field(default_factory=dict)
    place: Path | None = None
    takes_s: float = 60.0
    """About how long it takes on an H100: with less time than this it is not begun."""
    is_alone: bool = False
    """Whether it is timed, so that nothing may run beside it."""

    def missing(self, hardware: Hardware) -> str:
        """What this machine lacks for it; empty if nothing."""
        if REAL in self.needs and hardware.is_pretended:
            return "pretended GPUs cannot do it"
        lacking = [need for need in self.needs if need not in (REAL, COMPILED) and need not in hardware.tools]
        return f"{', '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not installed" if lacking else ""


def samebits(
    name: str,
    *words: str,
    judge: Judge = ends_well,
    limit_s: float = 120.0,
    needs: Sequence[str] = (),
    shares: bool = False,
    takes_s: float = 60.0,
) -> Task:
    """A command of samebits's; its ranks may share a GPU."""
    command = (sys.executable, "-m", "samebits", *words)
    return Task(name, command, judge, limit_s, needs, SHARE if shares else {}, takes_s=takes_s)


def program(
    name: str,
    which: str,
    *words: str,
    judge: Judge = by_its_word,
    limit_s: float = 120.0,
    needs: Sequence[str] = (),
    shares: bool = False,
    takes_s: float = 60.0,
) -> Task:
    """One of `programs/`, started by Python alone."""
    command = (sys.executable, "-m", f"{PROGRAMS}.{which}", *words)
    return Task(name, command, judge, limit_s, needs, SHARE if shares else {}, takes_s=takes_s)
