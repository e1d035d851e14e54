"""The doctor's report: one sentence, then a row for each check, its fix below it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from samebits.launcher.doctor.torch_facts import TorchFacts


class State(StrEnum):
    """How much a row matters."""

    OK = "ok"
    NOTE = "note"
    """Works, but could be better or is worth knowing."""
    PROBLEM = "problem"
    """Would keep a run from working."""


STYLES = {State.OK: "green", State.NOTE: "yellow", State.PROBLEM: "bold red"}


@dataclass(frozen=True)
class Row:
    """What was looked at, what was found, and the fix."""

    what: str
    state: State
    text: str
    fix: str = ""


def ok(what: str, text: str) -> Row:
    """Make a row for what needs nothing done."""
    return Row(what, State.OK, text)


def note(what: str, text: str, fix: str) -> Row:
    """Make a row for what works, but could be better or is worth knowing."""
    return Row(what, State.NOTE, text, fix)


def problem(what: str, text: str, fix: str) -> Row:
    return Row(what, State.PROBLEM, text, fix)


@dataclass(frozen=True)
class Report:
    rows: tuple[Row, ...]
    facts: TorchFacts

    @property
    def healthy(self) -> bool:
        """Whether nothing would keep a run from working."""
        return all(row.state is not State.PROBLEM for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        return {"ok": self.healthy, "rows": [asdict(row) for row in self.rows], "torch": asdict(self.facts)}

    def show(self, console: Console) -> None:
        """Print it: first whether a run would work, then why."""
        problems = ", ".join(row.what for row in self.rows if row.state is State.PROBLEM)
        verdict = f"A run would not work here: see {problems}." if problems else "A run would work here."
        console.print(Text(verdict, STYLES[State.PROBLEM if problems else State.OK]))
        drawn = Table(box=None, padding=(0, 2, 0, 0), show_header=False, show_edge=False, pad_edge=False)
        drawn.add_column(no_wrap=True)
        drawn.add_column(no_wrap=True)
        drawn.add_column(overflow="fold")
        for row in self.rows:
            text = Text(row.text)
            if row.fix:
                text.append(f"\n→ {row.fix}", "dim")
            drawn.add_row(Text(row.state, STYLES[row.state]), row.what, text)
        console.print(drawn)
