"""How the result looks: the verdict, a table of 80 columns where it helps, then sentences. Styles only where the output takes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from samebits.machine.visible import visible
from samebits.verify.comparison import Row
from samebits.verify.deviation import Deviation
from samebits.verify.lane_order import Order
from samebits.verify.plain import Agreement, Plain, sentence
from samebits.verify.repeat.operators import Parting, operator_lines
from samebits.verify.result import Against, Explained, Failed, Result

GOOD, BAD, EXPECTED = "green", "bold red", "yellow"
MOST_DIGESTS = 3
"""With more columns, equal digests are shown once: a row fits 80 characters."""


MOST_MISSING = 2
"""How much of what a proof does not cover is named without -v."""


def show(result: Result, console: Console, *, is_detailed: bool = False, seconds: float | None = None) -> None:
    """Print the verdict first; the table only where something is wrong, or all is to be seen.

    Args:
        result: of all runs.
        console: where.
        is_detailed: whether to print all there is.
        seconds: how long it took; None where that is not known.
    """
    if result.failed is not None:
        show_failed(result.failed, console)
    else:
        print_verdict(_same(result) if result.same_bits else "", console, seconds)
        if is_detailed or not result.proved:
            console.print(table(result))
            console.print()
        print_lines(sentences(result), console)
        print_missing(result.not_proved(), console, is_detailed=is_detailed)
    print_folder(result.kept, console)


def print_verdict(same: str, console: Console, seconds: float | None) -> None:
    """Print whether the bits are the same, where `same` says it, and how long it took to find out."""
    line = Text("SAME BITS", GOOD).append(f" {same}", "default") if same else Text("DIFFERENT BITS", BAD)
    console.print(line.append(f"   {seconds:.0f} s" if seconds is not None else "", "dim"))


def print_missing(missing: Sequence[str], console: Console, *, is_detailed: bool) -> None:
    """Print what a proof does not cover."""
    shown = len(missing) if is_detailed or len(missing) <= MOST_MISSING else MOST_MISSING
    more = f" ({len(missing) - shown} more: -v)" if shown < len(missing) else ""
    _print(console, f"not covered: {'; '.join(missing[:shown])}{more}", "dim")


def show_failed(failed: Failed, console: Console) -> None:
    """Print which run failed, and how."""
    _print(console, f"{failed.label} failed:", BAD)
    console.print(Text(failed.text.rstrip()), soft_wrap=True)


def print_lines(lines: Iterable[tuple[str, str]], console: Console) -> None:
    """Print sentences, each in its style."""
    for line, style in lines:
        _print(console, line, style)


def print_folder(kept: str, console: Console) -> None:
    """Print where the runs are, if they are kept."""
    if kept:
        console.print(Text(kept), soft_wrap=True)


def _print(console: Console, text: str, style: str = "") -> None:
    console.print(Text(visible(text), style=style))


def table(result: Result) -> Table:
    """A row for each kind of item, a column for each number of ranks."""
    drawn = Table(box=None, padding=(0, 2, 0, 0), show_edge=False, header_style="bold")
    drawn.add_column("what", no_wrap=True)
    for ranks in result.ranks:
        drawn.add_column(f"{ranks} rank{'s' if ranks != 1 else ''}")
    if result.against is not None:
        drawn.add_column("saved")
    if result.plain is not None:
        drawn.add_row("plain", _plain_cell(result.plain, result.accepts_plain))
    if result.lane_order is not None:
        order = result.lane_order
        at = f" at {order.place.when}" if order.place is not None else ""
        style = BAD if order.speaks_against else GOOD if order.found is Order.SAME else ""
        drawn.add_row("other lane order", Text(f"{order.found}{at}", style=style))
    for row in result.rows:
        style = EXPECTED if result.not_exact else BAD
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
    if plain.agreement is Agreement.AGREES:
        return Text(f"agrees, {plain.relative:.0e}", style=GOOD)
    if plain.agreement is Agreement.ONE_LANE:
        return Text("one lane")
    if plain.agreement in (Agreement.NO_GRADIENT, Agreement.SAME_LANES):
        return Text("no gradient" if plain.agreement is Agreement.NO_GRADIENT else "shows nothing", style=BAD)
    return Text(f"differs, {plain.relative:.2g}", style=BAD)


def sentences(result: Result) -> Iterator[tuple[str, str]]:
    """The lines below the table, each with its style."""
    if result.against is not None:
        yield from _against(result, result.against)
    if result.not_exact:
        yield from ((line, "") for line in _not_exact(result))
    elif result.difference is not None:
        yield from difference_lines(result.difference)
        yield from _operator(result.operator)
    plain = result.plain
    if plain is not None:
        style = GOOD if plain.agrees else EXPECTED if result.accepts_plain else BAD
        yield f"plain{', accepted' if result.accepts_plain else ''}: {sentence(plain)}", style
        if plain.batch_norms:
            layers = f"{plain.batch_norms} BatchNorm layer{'s' if plain.batch_norms != 1 else ''}"
            yield f"{layers}: each lane normalizes its own samples, as a data-parallel rank does.", ""
    # With a difference among ranks it is part of the cause.
    if result.lane_order is not None and result.lane_order.speaks_against and result.difference is None:
        yield result.lane_order.sentence, BAD
    if not result.lanes_named and result.usual_lanes != {result.lanes}:
        yield (
            (
                f"The script sets no lanes, so `samebits run` would not use {result.lanes} on each number of ranks, and the bits "
                f"would change. These bits need lanes={result.lanes} in samebits.init, or --lanes {result.lanes}."
            ),
            BAD,
        )
    if result.saved_to:
        yield f"The bits are in {result.saved_to}; compare with --against {result.saved_to}.", ""
    if result.not_saved_to:
        yield f"{result.not_saved_to} was not written: the ranks have different bits.", BAD


def _same(result: Result) -> str:
    *most, last = map(str, result.ranks)
    counts = f"{', '.join(most)} and {last}" if most else last
    noun = "rank" if result.ranks == (1,) else "ranks"
    lanes = f"{result.lanes} lane{'s' if result.lanes != 1 else ''}"
    threads = f"{result.threads} thread{'s' if result.threads != 1 else ''} each"
    steps = f"{result.num_steps} step{'s' if result.num_steps != 1 else ''}"
    end = (
        f"{', ' if result.reached_end else ', and '}{result.num_items_at_end} at the end"
        if result.num_items_at_end
        else ""
    )
    return f"on {counts} {noun}: {steps}, {result.num_items} items in each{end}; {lanes}, {threads}"


def _against(result: Result, against: Against) -> Iterator[tuple[str, str]]:
    if against.same:
        yield f"The same bits as in {against.path}, over {against.steps} steps.", GOOD
    elif result.same_on_all_ranks:
        yield f"The bits differ from {against.path}; they are the same on all ranks here.", BAD
    if against.facts:
        yield f"Conditions: {'; '.join(against.facts)}.", EXPECTED


def _not_exact(result: Result) -> Iterator[str]:
    """In place of a cause: a difference is expected, and not the script's fault."""
    yield f"Note: {result.not_exact}"
    if result.difference is not None:
        place = result.difference.difference.place
        yield (
            f"So the bits differ (first: {place}); this is not the script's fault. Equal bits can "
            f"be proved with `single`, `ddp`, `zero1`, `model_parallel` and `pipeline`, and numerics=exact without --allow."
        )
    elif result.same_bits:
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


def _operator(found: Parting | str) -> Iterator[tuple[str, str]]:
    if isinstance(found, Parting):
        data = "they are data, or what samebits or the script made of values without torch"
        yield from ((line, BAD) for line in operator_lines(found, data=data))
    elif found:
        yield f"operator: not known. {found}", ""


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
