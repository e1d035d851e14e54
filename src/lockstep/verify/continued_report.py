"""How the result of `verify --interrupt` looks: a table, then sentences, as `report` has them for `verify`."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from lockstep.verify.continued import Continued
from lockstep.verify.report import BAD, EXPECTED, GOOD, cell_text, difference_lines, say_folder, say_lines, show_failed


def show_continued(found: Continued, console: Console) -> None:
    """Print everything."""
    if found.failed is not None:
        show_failed(found.failed, console)
    else:
        console.print(continued_table(found))
        say_lines(continued_sentences(found), console)
    say_folder(found.kept, console)


def continued_table(found: Continued) -> Table:
    """A row for each kind of item; the undisturbed run and the one that went on."""
    drawn = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="bold")
    drawn.add_column("what", no_wrap=True)
    for header in ("undisturbed", f"stopped after {found.stopped_after}"):
        drawn.add_column(header)
    for row in found.rows:
        drawn.add_row(row.title, *(cell_text(row, number, BAD) for number in range(len(row.cells))))
    return drawn


def continued_sentences(found: Continued) -> Iterator[tuple[str, str]]:
    """The lines below the table, each with its style."""
    yield "", ""
    if found.stopped_after != found.after:
        yield (
            f"No state is saved after step {found.after}, so the run was stopped after step {found.stopped_after}.",
            "",
        )
    if found.same_bits:
        yield _same(found), GOOD
        if advice := found.forgotten.advice():
            yield f"Nothing that was compared depends on it, but {advice}", EXPECTED
    elif found.difference is not None:
        yield from difference_lines(found.difference)
        if found.ranks[0] != found.ranks[1]:
            numbers = ",".join(map(str, found.ranks))
            yield f"`lockstep verify --ranks {numbers}` shows whether the bits depend on the ranks without a stop.", ""
    yield "", ""
    yield "Not proved: " + "; ".join(found.not_proved()) + ".", "dim"


def _same(found: Continued) -> str:
    lanes = f"{found.lanes} lane{'s' * (found.lanes != 1)}"
    threads = f"{found.threads} thread{'s' * (found.threads != 1)} each"
    steps = f"{found.num_steps} step{'s' * (found.num_steps != 1)}"
    first, second = (f"{count} rank{'s' * (count != 1)}" for count in found.ranks)
    where = first if first == second else f"{first}, gone on with {second}"
    end = f", {found.num_items_at_end} at the end" if found.num_items_at_end else ""
    return (
        f"same bits after a stop at step {found.stopped_after} on {where}, over {steps} ({found.num_items} items in each{end}; "
        f"{lanes}, {threads})"
    )
