"""The table of ranks, for terminals and for people."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from lockstep.runs.view import Row, State, View
from lockstep.tables import table
from lockstep.visible import visible

STYLES = {
    State.WORKS: "green",
    State.WAITS: "",
    State.STOPPED: "bold red",
    State.FAILED: "bold red",
    State.ENDED: "dim",
}
_FIRST = (State.FAILED, State.STOPPED, State.WORKS, State.WAITS, State.ENDED)


def table_of(view: View, most_rows: int | None = None) -> Table:
    """A row for each rank.

    Args:
        view: the ranks.
        most_rows: how many rows there is room for. If there are more ranks, those come that others may have to look
            at: failed, stopped, at work while others wait; and a last row counts the others.
    """
    numbers = ("rank", "step", "samples/s", "memory", "for")
    drawn = table("rank", "state", "step", "samples/s", "memory", "for", "line", "doing", right=numbers)
    rows, left = chosen(view, most_rows)
    for row in rows:
        drawn.add_row(*_cells(row))
    if left:
        counts = {state: sum(row.state is state for row in left) for state in State}
        said = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        drawn.add_row("...", f"{len(left)} more: {said}", *[""] * 6)
    return drawn


def chosen(view: View, most_rows: int | None) -> tuple[list[Row], list[Row]]:
    """Rows to show, in the order of ranks, and those for which there is no room."""
    if most_rows is None or len(view.rows) <= most_rows:
        return list(view.rows), []
    by_interest = sorted(view.rows, key=lambda row: (_FIRST.index(row.state), row.step, row.rank))
    room = max(most_rows - 1, 1)
    return sorted(by_interest[:room], key=lambda row: row.rank), by_interest[room:]


def _cells(row: Row) -> tuple[str | Text, ...]:
    rate = f"{row.samples_per_s:,.0f}" if row.samples_per_s is not None else ""
    memory = f"{row.memory_bytes / 2**20:,.0f} MiB" if row.memory_bytes else ""
    lasts = duration_text(row.lasts_s) if row.doing else ""
    state = Text(row.state, style=STYLES[row.state])
    return str(row.rank), state, str(row.step), rate, memory, lasts, visible(row.place), visible(row.doing)


def duration_text(seconds: float) -> str:
    """`0.3 s`, `62 s`, `12 min`, `3.1 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
