"""How runs of a script without our calls look when they are compared: the verdict first, then sentences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from samebits.machine.visible import visible
from samebits.verify.repeat.operators import operator_lines
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
    if result.recorded_step is not None:
        counted = "" if result.is_apart else f", {result.compared} operators"
        return f" in {' and '.join(sides)}: step {result.recorded_step}{counted}"
    if result.apart is not None:
        return f" in {sides[0]} and {result.apart.right if result.apart.right != sides[0] else result.apart.left}"
    return f" in {' and '.join(sides)}: {steps}, {result.compared} tensors and numbers"


def sentences(result: Repeated) -> Iterator[tuple[str, str]]:
    """The lines below the verdict, each with its style."""
    if result.apart is not None:
        yield from _apart(result.apart)
    if result.is_before:
        yield (
            (
                f"the bits differ before step {result.recorded_step} already: find the first step that differs with "
                "--save bits.json there and --against bits.json here"
            ),
            "",
        )
    elif result.parting is not None:
        unknown = ": how far apart is not known, the file has hashes only" if result.against else ""
        yield from ((line, "") for line in operator_lines(result.parting, values=unknown))
    if result.parting_why:
        yield f"operator: not known. {result.parting_why}", ""
    yield from map(_tried, result.tried)
    if hard := [run.label for run in result.runs if not run.is_normal]:
        yield f"compared up to os._exit, with which {' and '.join(hard)} ended, not as a Python process ends", ""
    if result.facts:
        yield f"conditions that differ: {'; '.join(result.facts)}", ""
    if result.saved_to:
        yield f"saved to {result.saved_to}", ""


def _tried(one: Tried) -> tuple[str, str]:
    if one.helped:
        return f"tried {one.name}: the bits are the same then; {one.advice}", GOOD
    if one.until:
        return f"tried {one.name}: they part later then, at {one.until}; {one.advice}", ""
    if one.helped is None:
        return f"tried {one.name}: the run failed", "dim"
    why = "two runs were the same by chance, it changes nothing" if one.is_idle else "they differ all the same"
    return f"tried {one.name}: {why}", "dim"


def _apart(apart: Apart) -> Iterator[tuple[str, str]]:
    place = apart.place
    if apart.ended:
        other = apart.left if apart.ended != apart.left else apart.right
        yield (
            f"first difference: {apart.ended} ends after step {place.step - 1}, and {other} makes a step {place.step}",
            "",
        )
        return
    rank = f", rank {apart.rank}" if apart.rank else ""
    many = f" ({apart.places} of {apart.of} items of this step)" if apart.places > 1 else ""
    yield f"first difference: {place.when}{rank}: {place.item}{many}", ""
    if apart.norms is not None:
        yield f"norms: {apart.norms[0]:.9g} in {apart.left}, {apart.norms[1]:.9g} in {apart.right}", ""
    elif None in apart.values:
        side = apart.left if apart.values[0] is None else apart.right
        yield f"{side} has no such item", ""
