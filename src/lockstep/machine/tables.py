"""Tables whose columns line up and are never cut, since names and hashes are copied from them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

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
