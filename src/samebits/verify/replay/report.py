"""How a replay looks: the verdict first, then what was seen in the step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isnan
from typing import Any

from rich.console import Console
from rich.text import Text

from samebits.launcher.watch.table import show_table, table
from samebits.machine.visible import visible
from samebits.verify.replay.replay import Replayed, text_of
from samebits.verify.report import BAD, EXPECTED, GOOD, print_folder, print_lines

MOST_SAMPLES = 8
"""Indices that a row names; --json has all."""


def show(found: Replayed, console: Console, *, seconds: float, has_rows: bool) -> None:
    """Print all there is."""
    word, style = _verdict(found)
    line = Text(word, style)
    line.append(visible(_what(found)), "default").append(f"   {seconds:.0f} s", "dim")
    console.print(line)
    print_lines(_sentences(found), console)
    if found.block:
        console.print(Text(found.block.rstrip()), soft_wrap=True)
    for number, lanes in enumerate(found.passes, 1) if has_rows else ():
        if len(found.passes) > 1:
            print_lines([(f"pass {number}", "bold")], console)
        _show_rows(lanes, console)
    print_folder(found.kept, console)


def _verdict(found: Replayed) -> tuple[str, str]:
    if found.compared.other is not None or found.other_step:
        return "OTHER VALUES", BAD
    if found.failed_there:
        return "FAILED IN", BAD
    if not found.is_there:
        return "NOT REACHED", EXPECTED
    return ("SAME VALUES", GOOD) if found.compared.count or found.steps else ("NOT COMPARED", EXPECTED)


def _what(found: Replayed) -> str:
    start = f"from the state after step {found.begins_after}" if found.begins_after else "from the beginning"
    ranks = f"{found.ranks} rank{'s' * (found.ranks != 1)}"
    return f" step {found.step} of {found.title}, {start}, on {ranks}"


def _sentences(found: Replayed) -> Iterator[tuple[str, str]]:
    compared, other = found.compared, found.compared.other
    if compared.count:
        steps = f"step {compared.first}" if compared.first == compared.last else (
            f"steps {compared.first} to {compared.last}"
        )  # fmt: skip
        values = f"{compared.count} value{'s' * (compared.count != 1)}"
        yield f"{values} of {steps} came again, to the last bit: {', '.join(compared.names)}", ""
    elif other is None and found.is_there and not found.steps:
        yield "The run logged no finite value in these steps (run.log), so there was nothing to compare.", ""
    if found.other_step:
        yield found.other_step, BAD
    elif found.steps:
        yield (
            f"{found.steps} step{'s' * (found.steps != 1)} as the run recorded them: samples, losses, learning rates",
            "",
        )
    if other is not None:
        there, here = text_of(other.recorded), text_of(other.replayed)
        yield f"{other.name} of step {other.step} was {there}, and is {here} now", BAD
        if found.has_changed:
            yield "The script was changed after that run had begun.", ""
    if found.why_beginning:
        yield f"From the beginning, because {found.why_beginning}", ""
    if found.why:
        yield found.why, ""
    if found.forward:
        yield f"the NaN comes from the backward of {found.forward}", BAD


def _show_rows(lanes: Mapping[int, Mapping[str, Any]], console: Console) -> None:
    """A row for each lane; the largest loss and norm stand out."""
    drawn = table(
        "lane", "samples", "loss", "gradient norm", "indices", right=("lane", "samples", "loss", "gradient norm")
    )
    most = {key: _most([row.get(key) for row in lanes.values()]) for key in ("loss", "norm")}
    for lane, row in lanes.items():
        cells = [_number(row.get(key), is_most=len(lanes) > 1 and row.get(key) == most[key]) for key in most]
        samples = row["samples"]
        more = f" and {len(samples) - MOST_SAMPLES} more" if len(samples) > MOST_SAMPLES else ""
        indices = visible(", ".join(map(str, samples[:MOST_SAMPLES])) + more)
        drawn.add_row(str(lane), str(len(samples)), *cells, Text(indices, "dim"))
    show_table(drawn, console)


def _most(values: Sequence[float | None]) -> float | None:
    return max((one for one in values if one is not None and not isnan(one)), default=None)


def _number(value: float | None, *, is_most: bool) -> Text:
    text = "–" if value is None else f"{value:.6g}"
    return Text(text, "bold" if is_most else "")
