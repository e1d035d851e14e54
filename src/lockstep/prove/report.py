"""How findings look: a table that fits 80 columns, then sentences. Styles only where the output takes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lockstep.prove.findings import Against, Explained, Failed, Findings
from lockstep.prove.plain import Finding, Plain, sentence
from lockstep.prove.rows import Row
from lockstep.prove.values import Deviation
from lockstep.visible import visible

GOOD, BAD, EXPECTED = "green", "bold red", "yellow"
MOST_DIGESTS = 3
"""With more columns, equal digests are shown once: a row fits 80 characters."""


def show(findings: Findings, console: Console) -> None:
    """Print everything."""
    if findings.failed is not None:
        show_failed(findings.failed, console)
    else:
        console.print(table(findings))
        say_lines(sentences(findings), console)
    say_folder(findings.kept, console)


def show_failed(failed: Failed, console: Console) -> None:
    """Print which run failed, and how."""
    _say(console, f"{failed.label} failed:", BAD)
    console.print(Text(failed.text.rstrip()), soft_wrap=True)


def say_lines(lines: Iterable[tuple[str, str]], console: Console) -> None:
    """Print sentences, each in its style."""
    for line, style in lines:
        _say(console, line, style)


def say_folder(kept: str, console: Console) -> None:
    """Print where the runs are, if they are kept."""
    if kept:
        console.print(Text(kept), soft_wrap=True)


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(Text(visible(text), style=style))


def table(findings: Findings) -> Table:
    """A row for each kind of item, a column for each number of ranks."""
    drawn = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="bold")
    drawn.add_column("what", no_wrap=True)
    for ranks in findings.ranks:
        drawn.add_column(f"{ranks} rank{'s' if ranks != 1 else ''}")
    if findings.against is not None:
        drawn.add_column("saved")
    if findings.plain is not None:
        drawn.add_row("plain", _plain_cell(findings.plain, findings.accepts_plain))
    for row in findings.rows:
        style = EXPECTED if findings.not_exact else BAD
        drawn.add_row(row.title, *(cell_text(row, number, style) for number in range(len(row.cells))))
    return drawn


def cell_text(row: Row, number: int, differing: str) -> Text:
    one = row.cells[number]
    if one.differs_at is not None:
        who = f"rank {one.rank} differs" if one.rank is not None else "differs"
        return Text(f"{who} at step {one.differs_at}" if row.in_each_step else who, style=differing)
    if number and len(row.cells) > MOST_DIGESTS:
        return Text("same", style=GOOD)
    text = Text(one.digest or "none")
    return text if number == 0 else text.append(" same", style=GOOD)


def _plain_cell(plain: Plain, accepted: bool) -> Text:
    if accepted:
        apart = f", {plain.relative:.2g}" if plain.relative else ""
        return Text(f"accepted{apart}", style=EXPECTED)
    if plain.finding is Finding.AGREES:
        return Text(f"agrees, {plain.relative:.0e}", style=GOOD)
    if plain.finding is Finding.ONE_LANE:
        return Text("one lane")
    if plain.finding in (Finding.NO_GRADIENT, Finding.SAME_LANES):
        return Text("no gradient" if plain.finding is Finding.NO_GRADIENT else "shows nothing", style=BAD)
    return Text(f"differs, {plain.relative:.2g}", style=BAD)


def sentences(findings: Findings) -> Iterator[tuple[str, str]]:
    """The lines below the table, each with its style."""
    yield "", ""
    if findings.same_on_all_ranks:
        yield _same(findings), GOOD
    if findings.against is not None:
        yield from _against(findings, findings.against)
    if findings.not_exact:
        yield from ((line, "") for line in _not_exact(findings))
    elif findings.difference is not None:
        yield from difference_lines(findings.difference)
    plain = findings.plain
    if plain is not None:
        style = GOOD if plain.agrees else EXPECTED if findings.accepts_plain else BAD
        yield f"plain{', accepted' if findings.accepts_plain else ''}: {sentence(plain)}", style
        if plain.batch_norms:
            layers = f"{plain.batch_norms} BatchNorm layer{'s' if plain.batch_norms != 1 else ''}"
            yield f"{layers}: each lane normalizes its own samples, as a data-parallel rank does.", ""
    if not findings.lanes_named:
        yield (
            (
                f"The script sets no lanes, so `lockstep run` would use one per rank, and the bits would change with "
                f"the ranks. These bits need lanes={findings.lanes} in lockstep.init, or --lanes {findings.lanes}."
            ),
            BAD,
        )
    if findings.saved_to:
        yield f"The bits are in {findings.saved_to}; compare with --against {findings.saved_to}.", ""
    if findings.not_saved_to:
        yield f"{findings.not_saved_to} was not written: the ranks have different bits.", BAD
    yield "", ""
    yield "Not proved: " + "; ".join(findings.not_proved()) + ".", "dim"


def _same(findings: Findings) -> str:
    counts = ", ".join(map(str, findings.ranks))
    noun = "rank" if findings.ranks == (1,) else "ranks"
    lanes = f"{findings.lanes} lane{'s' if findings.lanes != 1 else ''}"
    threads = f"{findings.threads} thread{'s' if findings.threads != 1 else ''} each"
    steps = f"{findings.num_steps} step{'s' if findings.num_steps != 1 else ''}"
    end = (
        f"{', ' if findings.reached_end else ', and '}{findings.num_items_at_end} at the end"
        if findings.num_items_at_end
        else ""
    )
    return f"same bits on {counts} {noun} over {steps} ({findings.num_items} items in each{end}; {lanes}, {threads})"


def _against(findings: Findings, against: Against) -> Iterator[tuple[str, str]]:
    if against.same:
        yield f"The same bits as in {against.path}, over {against.steps} steps.", GOOD
    elif findings.same_on_all_ranks:
        yield f"The bits differ from {against.path}.", BAD
    if against.facts:
        yield f"Conditions: {'; '.join(against.facts)}.", EXPECTED


def _not_exact(findings: Findings) -> Iterator[str]:
    """What is said in place of a cause: a difference is expected, and not the script's fault."""
    yield f"Note: {findings.not_exact}"
    if findings.difference is not None:
        place = findings.difference.difference.place
        yield (
            f"So the bits differ (first: {place}); this is not the script's fault. Equal bits can "
            f"be proved with `single`, `ddp`, `zero1`, `model_parallel` and `pipeline`, and numerics=exact."
        )
    elif findings.same_bits:
        yield "They were equal here; another run may differ."


def difference_lines(found: Explained) -> Iterator[tuple[str, str]]:
    """The first difference in sentences, each with its style."""
    difference = found.difference
    place = difference.place
    layer = f" (layer {place.layer})" if place.layer else ""
    yield f"First difference: {place}{layer}: {found.left} against {found.right}.", BAD
    others = len(difference.places) - 1
    if others:
        which = "of this step" if place.when.startswith("step") else "there"
        items = f"other item {which} differs" if others == 1 else f"other items {which} differ"
        yield f"  {others} {items} too.", ""
    if found.values is not None and None not in (difference.left_value, difference.right_value):
        ratio = found.deviation.ratio if found.deviation is not None else None
        times = f" (ratio {ratio:.6g})" if ratio is not None else ""
        yield f"  {found.left}: {found.values[0]}; {found.right}: {found.values[1]}{times}", ""
    for who, value in ((found.left, difference.left_value), (found.right, difference.right_value)):
        if value is None:
            yield f"  {who}: no such item.", ""
    if found.deviation is not None:
        yield f"  {_deviation(found.deviation)}", ""
    if found.norms is not None:
        yield f"  {_norms(*found.norms)}", ""
    if not found.repeatable:
        yield "  Run again, the same configuration gave different bits.", ""
    yield f"Usual cause: {found.cause}", ""


def _norms(here: float, there: float) -> str:
    scale = max(abs(here), abs(there))
    apart = (
        f"relative difference {abs(here - there) / scale:.2g}"
        if scale and math.isfinite(scale)
        else "not finite, or zero"
    )
    return f"norm {here:.9g} here, {there:.9g} there ({apart})"


def _deviation(deviation: Deviation) -> str:
    sampled = " compared" if deviation.sampled else ""
    apart = (
        f"largest difference {deviation.max_absolute:.3g} ({deviation.max_relative:.2g} of the largest value)"
        if math.isfinite(deviation.max_absolute)
        else "some are not finite"
    )
    if deviation.num_elements == 1:
        return apart
    ratio = f"; all by a factor of {deviation.ratio:.6g}" if deviation.ratio is not None else ""
    return f"{deviation.num_differing} of {deviation.num_elements}{sampled} elements differ; {apart}{ratio}"
