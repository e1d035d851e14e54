"""How a report looks: a row for each check, its fix below it, and one sentence at the end."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lockstep.checkup.report import Report, Row, State

STYLES = {State.OK: "green", State.NOTE: "yellow", State.PROBLEM: "bold red"}


def show(report: Report, console: Console) -> None:
    """Print the report."""
    drawn = Table(box=None, padding=(0, 2, 0, 0), show_header=False, show_edge=False, pad_edge=False)
    drawn.add_column(no_wrap=True)
    drawn.add_column(no_wrap=True)
    drawn.add_column(overflow="fold")
    for row in report.rows:
        drawn.add_row(Text(row.state, STYLES[row.state]), row.what, _text(row))
    console.print(drawn)
    console.print(Text(closing(report)))


def _text(row: Row) -> Text:
    text = Text(row.text)
    return text.append(f"\n→ {row.fix}", "dim") if row.fix else text


def closing(report: Report) -> str:
    """Whether a run would work."""
    problems = [row.what for row in report.rows if row.state is State.PROBLEM]
    if problems:
        return f"A run would not work here: see {', '.join(problems)}."
    return "A run would work here."
