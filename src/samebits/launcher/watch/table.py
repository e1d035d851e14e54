"""The table of ranks, for terminals and for people; many ranks that do the same are one row of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from statistics import mean

from rich.console import Console
from rich.table import Table
from rich.text import Text

from samebits.launcher.diagnosis.words import ranks_text
from samebits.launcher.watch.view import Row, State, View
from samebits.machine.visible import visible

STYLES = {
    State.WORKS: "green",
    State.WAITS: "",
    State.STOPPED: "bold red",
    State.FAILED: "bold red",
    State.ENDED: "dim",
}
SEVERAL = {State.WORKS: "work", State.WAITS: "wait"}
WIDE = 100
"""On narrower terminals each rank's memory and speed are left out, and what it does may take two lines."""
MOST_RANKS_COLUMNS = 24
MOST_ALONE = 8
"""Up to so many ranks each has a row of its own, in the order of ranks."""
INTEREST = (State.FAILED, State.STOPPED, State.WORKS, State.WAITS, State.ENDED)
"""What others may have to look at comes first: ranks at work while others wait are among those that hold them up."""


@dataclass(frozen=True)
class Group:
    rows: tuple[Row, ...]

    @property
    def oldest(self) -> Row:
        """The one that has done it for longest."""
        return max(self.rows, key=lambda row: row.lasts_s)

    @property
    def does_one_thing(self) -> bool:
        """Whether all do the same at the same line."""
        return len({_same(row) for row in self.rows}) == 1


def _same(row: Row) -> Hashable:
    return row.state, row.doing, row.place


_KEYS: tuple[Callable[[Row], Hashable], ...] = (_same, lambda row: (row.state, row.place), lambda row: row.state)
"""What ranks of a group have in common, from much to little."""


def grouped(rows: Sequence[Row], most: int | None = None) -> list[Group]:
    """The ranks in groups, those first that others may have to look at; a few ranks stay alone, in their order.

    Args:
        rows: of all ranks.
        most: how many groups there is room for. If it is not enough, unlike ranks of one state come together.

    Invariant: every rank is in one group.
    """
    if len(rows) <= MOST_ALONE and (most is None or len(rows) <= most):
        return [Group((row,)) for row in rows]
    found: dict[Hashable, list[Row]] = {}
    for key in _KEYS:
        found = {}
        for row in rows:
            found.setdefault(key(row), []).append(row)
        if most is None or len(found) <= most:
            break
    groups = [Group(tuple(together)) for together in found.values()]
    return sorted(groups, key=lambda group: (INTEREST.index(group.rows[0].state), len(group.rows), group.rows[0].rank))


def table_of(view: View, most_rows: int | None = None, width: int = WIDE) -> Table:
    """A row for each rank; with many ranks, one for those that do the same, with their mean speed and memory.

    Args:
        view: the ranks.
        most_rows: how many rows there is room for.
        width: the columns of the terminal.
    """
    is_wide = width >= WIDE
    groups = grouped(view.rows, most_rows if is_wide or most_rows is None else most_rows // 2)
    headings = ["ranks" if len(groups) < len(view.rows) else "rank", "state", "step"]
    headings += ["samples/s", "memory"] * is_wide + ["for", "doing"]
    drawn = table(*headings, right=("rank", "step", "samples/s", "memory", "for"))
    drawn.columns[0].max_width = MOST_RANKS_COLUMNS
    drawn.columns[-1].no_wrap, drawn.columns[-1].overflow = False, "fold"
    for group in groups:
        numbers = [_rate(group.rows), _memory(group.rows)] * is_wide
        first = group.rows[0]
        steps = sorted({row.step for row in group.rows})
        drawn.add_row(
            ranks_text(row.rank for row in group.rows).partition(" ")[2],
            Text(_state(group), style=STYLES[first.state]),
            str(steps[0]) if len(steps) == 1 else f"{steps[0]}-{steps[-1]}",
            *numbers,
            duration_text(group.oldest.lasts_s) if group.oldest.doing else "",
            visible(_doing(group)),
        )
    return drawn


def total_of(view: View) -> str:
    """`64 ranks: 1 works, 62 wait, 1 stopped`."""
    by_state = {state: tuple(row for row in view.rows if row.state is state) for state in STYLES}
    counts = ", ".join(_state(Group(rows), always=True) for rows in by_state.values() if rows)
    return f"{len(view.rows)} rank{'s' * (len(view.rows) != 1)}: {counts}"


def _state(group: Group, *, always: bool = False) -> str:
    """`waits`, `62 wait`; with its number also for one rank where `always`."""
    state, count = group.rows[0].state, len(group.rows)
    if count == 1:
        return f"1 {state}" if always else state
    return f"{count} {SEVERAL.get(state, state)}"


def _doing(group: Group) -> str:
    """What most of them do, and where; with its process number of one that is stopped, which `kill -CONT` needs."""
    texts = [
        f"{row.doing} ({row.place})" if row.place and row.place not in row.doing else row.doing for row in group.rows
    ]
    if len(group.rows) == 1 and group.rows[0].state is State.STOPPED:
        return f"process {group.rows[0].pid}, {texts[0]}"
    most = max(dict.fromkeys(texts), key=texts.count)
    return most if group.does_one_thing else f"{most}: {texts.count(most)} of them"


def _rate(rows: Sequence[Row]) -> str:
    known = [row.samples_per_s for row in rows if row.samples_per_s is not None]
    return f"{mean(known):,.0f}" if known else ""


def _memory(rows: Sequence[Row]) -> str:
    known = [row.memory_bytes for row in rows if row.memory_bytes]
    return f"{mean(known) / 2**20:,.0f} MiB" if known else ""


def duration_text(seconds: float) -> str:
    """`0.3 s`, `62 s`, `12 min`, `3.1 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


# Tables whose columns line up and are never cut, since names and hashes are copied from them

_WIDEST = 10_000


def table(*headings: str, right: Iterable[str] = ()) -> Table:
    """An empty table; the columns in `right` hold numbers."""
    drawn = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, pad_edge=False, header_style="bold")
    numbers = set(right)
    for heading in headings:
        drawn.add_column(heading, no_wrap=True, justify="right" if heading in numbers else "left")
    return drawn


def show_table(drawn: Table, console: Console) -> None:
    """Print it as wide as it is, without spaces at the ends; a terminal that is narrower breaks the lines itself."""
    for segments in console.render_lines(drawn, console.options.update(width=_WIDEST), pad=False):
        line = Text.assemble(*((segment.text, segment.style or "") for segment in segments))
        line.rstrip()
        console.print(line, soft_wrap=True)
