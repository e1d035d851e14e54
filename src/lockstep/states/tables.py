"""Tables of states: columns that line up and are never cut, since names and hashes are copied from them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lockstep.visible import visible

GOOD, BAD, ASIDE = "green", "bold red", "yellow"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
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


def say(console: Console, text: str = "", style: str = "") -> None:
    """Print a line or a sentence, broken by the terminal alone."""
    console.print(Text(visible(text), style=style), soft_wrap=True)


def size_text(size: int | None) -> str:
    """`840 B`, `1.6 KiB`, `12.0 GiB`; a dash for what is unknown."""
    if size is None:
        return "–"
    amount, unit = float(size), 0
    while amount >= 1023.95 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {_UNITS[unit]}" if unit else f"{size} B"


def count(number: int, noun: str) -> str:
    """`1 tensor`, `1,200 tensors`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"
