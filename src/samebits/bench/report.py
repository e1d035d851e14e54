"""How the results of a bench look: two tables that fit 80 columns, then sentences."""

from __future__ import annotations

import math
import textwrap

from rich.console import Console
from rich.table import Table
from rich.text import Text

from samebits.bench.measures import PARTS
from samebits.bench.reasons import sentences
from samebits.bench.results import DIFFERS, REFERENCE, SAME, Measured, Results

STYLES = {SAME: "green", REFERENCE: "", DIFFERS: "bold red"}
MEBI = 1 << 20


def show(results: Results, console: Console) -> None:
    """Print everything."""
    if results.stopped:
        console.print(Text("The first run failed:", style="bold red"))
        console.print(Text(results.stopped.rstrip()), soft_wrap=True)
    elif results.base is None:
        console.print(Text("One rank was not measured, so there is nothing to compare with."))
    else:
        _show_numbers(results, console)
    for one in () if results.base is not None else results.measured:
        if one.failed:
            console.print(Text(f"{one.title} failed: {one.failed}", style="bold red"))
    if results.kept:
        console.print(Text(results.kept), soft_wrap=True)


def _show_numbers(results: Results, console: Console) -> None:
    console.print(speed_table(results))
    console.print()
    console.print(time_table(results))
    console.print()
    for line in sentences(results):
        failed = " failed: " in line
        _print(line, console, "bold red" if failed else "")
    _print(conditions(results), console, "dim")


def _print(line: str, console: Console, style: str) -> None:
    """Print a sentence, wrapped to the width of the output; its indent stays."""
    indent = line[: len(line) - len(line.lstrip())]
    broken = textwrap.fill(line, console.width, subsequent_indent=indent, break_on_hyphens=False)
    console.print(Text(broken, style=style), soft_wrap=True)


def conditions(results: Results) -> str:
    """The conditions under which the numbers were measured."""
    amount = results.amount
    rounds = min((len(one.rounds) for one in results.whole()), default=0)
    counted = (
        f"{rounds} of {amount.rounds} rounds"
        if results.interrupted_by
        else f"{amount.rounds} round{'s' * (rounds != 1)}"
    )
    threads = results.base.threads if results.base is not None else 0
    return (
        f"Measured on {results.cores} cores, {results.device}: {counted} in turn, {amount.steps} "
        f"step{'s' * (amount.steps != 1)} each after {amount.warm_up} of warm-up, {threads} "
        f"thread{'s' * (threads != 1)} per rank; the slowest rank's time. ±: half the distance between the quartiles "
        f"of all steps. Speed-up: median of the rounds' ratios. MiB: the largest rank's peak; all ranks at the end, "
        f"shared memory once."
    )


def speed_table(results: Results) -> Table:
    """How fast, how much memory, whose bits."""
    drawn = _table()
    for heading in ("configuration", "lanes", "samples/s", "±", "speed-up", "MiB\nrank/node", "bits"):
        left = heading in ("configuration", "bits")
        drawn.add_column(heading, justify="left" if left else "right", no_wrap=heading != "bits")
    for one in results.measured:
        if not one.rounds:
            drawn.add_row(one.title, str(one.lanes or ""), Text("failed" if one.failed else "–", style="bold red"))
            continue
        speed, speed_up = one.speed, results.speed_up(one)
        exact = results.exactness(one)
        drawn.add_row(
            one.title,
            str(one.lanes),
            _digits(speed.median),
            f"{speed.relative:.0%}",
            f"{speed_up.median:.2f}x" if speed_up is not None else "–",
            _memory(one),
            Text(exact, style=STYLES.get(exact, "yellow")),
        )
    return drawn


def time_table(results: Results) -> Table:
    """Where a step's time goes."""
    drawn = _table()
    drawn.add_column("a step's time", no_wrap=True)
    for heading in ("lanes", "ms", *PARTS):
        drawn.add_column(heading, justify="right", no_wrap=True)
    for one in results.whole():
        shares = (f"{share:.0%}" for share in one.shares().values())
        drawn.add_row(one.title, str(one.lanes), _digits(one.step_s * 1e3), *shares)
    return drawn


def _table() -> Table:
    return Table(box=None, padding=(0, 2, 0, 0), show_edge=False, pad_edge=False, header_style="bold")


def _memory(one: Measured) -> str:
    rank = one.cuda_peak if one.cuda_peak is not None else one.memory_per_rank
    return f"{rank / MEBI:.0f}/{one.memory_of_node / MEBI:.0f}"


def _digits(value: float) -> str:
    """Three significant digits, and all before the point."""
    decimals = max(2 - math.floor(math.log10(value)), 0) if value > 0 else 0
    return f"{value:.{decimals}f}"
