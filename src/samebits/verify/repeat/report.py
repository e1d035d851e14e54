"""How runs of a script without our calls look when they are compared: the verdict first, then sentences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from samebits.machine.visible import visible
from samebits.verify.repeat.operators import Parting, Why
from samebits.verify.repeat.result import Apart, Repeated, Tried, Verdict
from samebits.verify.report import BAD, EXPECTED, GOOD, print_folder, print_lines, print_missing

STYLES = {Verdict.SAME: GOOD, Verdict.DIFFERENT: BAD, Verdict.CANNOT_TELL: EXPECTED}


def show(result: Repeated, console: Console, *, seconds: float) -> None:
    """Print all there is."""
    line = Text(result.verdict.upper(), STYLES[result.verdict])
    line.append(visible(_what(result)), "default").append(f"   {seconds:.0f} s", "dim")
    console.print(line)
    if result.why:
        console.print(Text(result.why.rstrip()), soft_wrap=True)
    else:
        print_lines(sentences(result), console)
        print_missing(result.not_covered(), console, is_detailed=True)
    print_folder(result.kept, console)


def _what(result: Repeated) -> str:
    if result.why:
        return f" in {result.failed}: nothing was compared"
    sides = [run.label for run in result.runs] + ([Path(result.against).name] if result.against else [])
    steps = f"{result.steps} step{'s' if result.steps != 1 else ''}"
    if result.apart is not None:
        return f" in {sides[0]} and {result.apart.right if result.apart.right != sides[0] else result.apart.left}"
    return f" in {' and '.join(sides)}: {steps}, {result.compared} tensors and numbers"


def sentences(result: Repeated) -> Iterator[tuple[str, str]]:
    """The lines below the verdict, each with its style."""
    if result.apart is not None:
        yield from _apart(result.apart)
    if result.parting is not None:
        yield from ((line, "") for line in operator_lines(result.parting))
    if result.parting_why:
        yield f"operator: not known. {result.parting_why}", ""
    for one in result.tried:
        if one.helped:
            yield f"tried {one.name}: the bits are the same then; {one.advice}", GOOD
        elif one.until:
            yield f"tried {one.name}: they part later then, at {one.until}; {one.advice}", ""
        else:
            yield f"tried {one.name}: {_no_help(one)}", "dim"
    if result.facts:
        yield f"conditions that differ: {'; '.join(result.facts)}", ""
    if result.saved_to:
        yield f"saved to {result.saved_to}", ""


def _no_help(tried: Tried) -> str:
    if tried.helped is None:
        return "the run failed"
    return "two runs were the same by chance, it changes nothing" if tried.is_idle else "they differ all the same"


def _apart(apart: Apart) -> Iterator[tuple[str, str]]:
    place = apart.place
    rank = f", rank {apart.rank}" if apart.rank else ""
    many = f" ({apart.places} of {apart.of} items of this step)" if apart.places > 1 else ""
    yield f"first difference: {place.when}{rank}: {place.item}{many}", ""
    if apart.norms is not None:
        yield f"norms: {apart.norms[0]:.9g} in {apart.left}, {apart.norms[1]:.9g} in {apart.right}", ""
    elif None in apart.values:
        side = apart.left if apart.values[0] is None else apart.right
        yield f"{side} has no such item", ""


def operator_lines(parting: Parting) -> Iterator[str]:
    """Where two sides part, for a person."""
    way = "backward" if parting.is_backward else "forward"
    at = f" at {_short(parting.line)}" if parting.line else ""
    shapes = f" of {', '.join(parting.shapes)}" if parting.shapes else ""
    if parting.why is Why.OPERATOR:
        far = f": up to {parting.most:.3g}, {parting.ulps:.0f} ulp" if parting.most is not None else ""
        yield f"operator: {parting.name}{shapes}{at} ({way}) has equal inputs and other results{far}"
    elif parting.why is Why.ARGUMENT and parting.values is not None:
        one, other = parting.values
        yield f"operator: {parting.name}{shapes}{at} ({way}) is called with {one} on one side and {other} on the other"
    elif parting.why is Why.GENERATOR:
        yield f"operator: {parting.name}{at} draws from random numbers that are in another state"
    elif parting.why is Why.INPUT:
        yield f"operator: {parting.name}{shapes}{at} ({way}) gets other inputs, which no operator of torch made: they are data"
    else:
        other = f"{parting.other_name or 'nothing'}{f' at {_short(parting.other_line)}' if parting.other_line else ''}"
        yield f"operator: one side calls {parting.name}{at} ({way}), the other {other}"


def _short(line: str) -> str:
    file, _, number = line.rpartition(":")
    return f"{Path(file).name}:{number}"
