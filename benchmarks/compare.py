"""Kinds of machines side by side, from the files in benchmarks/results: shares of what each machine allows.

python -m benchmarks.compare [FILE...] [--picture FILE.png]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.ending import ends_shortly
from benchmarks.keeping import RESULTS, read
from benchmarks.kinds import MachineKind
from benchmarks.pictures import cannot_draw, draw_kinds
from benchmarks.summary import Kind, Unit, amount_text

Results = Mapping[MachineKind, Mapping[str, Any]]
"""The parts of each kind of machine."""


def shares(parts: Mapping[str, Any]) -> dict[str, float]:
    """Which part of its limit each line reaches, by what it says; lines without a limit are left out."""
    lines = [(name.partition(" on ")[2], line) for name, part in parts.items() for line in part["lines"]]
    return {
        f"{line['what']}{f' on {cpus}' if cpus else ''}, {line['ours']}": line["reached"]
        for cpus, line in lines
        if line["limit_amount"] and line["amount"] > 0
    }


def in_common(of_kinds: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """What was measured on two kinds of machines at least; with one kind, all of it."""
    names = Counter(name for found in of_kinds.values() for name in found)
    least = min(2, len(of_kinds))
    return {kind: {n: share for n, share in found.items() if names[n] >= least} for kind, found in of_kinds.items()}


def side_by_side(results: Results) -> str:
    """A table of Markdown: amounts, results and shares of the limit, a column for each kind of machine."""
    rows = [["", *(kind.said for kind in results)]]
    for part in dict.fromkeys(name for parts in results.values() for name in parts):
        there = [parts.get(part) for parts in results.values()]
        rows.append([f"**{part}**", *("" if of is None else _circumstances(of) for of in there)])
        found = [{} if of is None else _cells(of["lines"]) for of in there]
        rows += [[what, *(of.get(what, "") for of in found)] for what in dict.fromkeys(w for of in found for w in of)]
    return markdown_table(rows)


def _circumstances(part: Mapping[str, Any]) -> str:
    """Files that were kept before 2026-11-26 do not tell rounds and load."""
    more = f", {part['rounds']} rounds, load {part['load']}" if "rounds" in part else ""
    return f"{part['date']}, {part['commit']}, torch {part['torch']}{more}"


def _cells(lines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """By what was measured and in which of our ways; several other sides follow each other."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in lines:
        told = [amount_text(line["amount"], Unit(line["unit"]))]
        if line["kind"] != Kind.AMOUNT:
            told.append(f"{line['result']:.3g}{'x' * (line['kind'] == Kind.TIMES)}")
        told += [f"{line['reached']:.0%}"] * bool(line["limit_amount"])
        found[f"{line['what']}, {line['ours']}"].append(", ".join(told))
    return {what: "; ".join(told) for what, told in found.items()}


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the heading."""
    widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the options; exit with code 2 and a sentence when they cannot be met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="[default: all of benchmarks/results]")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the shares of the limit")
    options = parser.parse_args(words)
    options.files = options.files or sorted(RESULTS.glob("*.json"))
    problem = (
        "" if options.files else "There are no results yet. Write some with: python -m benchmarks transport --keep"
    )
    if problem := problem or (cannot_draw(options.picture) if options.picture else ""):
        print(f"{parser.prog}: {problem}", file=sys.stderr)
        sys.exit(2)
    return options


@ends_shortly
def main() -> None:
    options = parse(sys.argv[1:])
    try:
        found = [read(path) for path in options.files]
    except ValueError as problem:
        print(problem, file=sys.stderr)
        sys.exit(2)
    results = {one["kind"]: one["parts"] for one in found}
    print(side_by_side(results), flush=True)
    try:
        if options.picture:
            draw_kinds(in_common({kind.said: shares(parts) for kind, parts in results.items()}), options.picture)
    except OSError as error:
        print(f"The picture {options.picture} cannot be written: {error.strerror}.", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
