"""Kinds of machines side by side, from the files in benchmarks/results: shares of what each machine allows.

python -m benchmarks.compare [FILE...] [--picture FILE.png]
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.ending import ends_shortly
from benchmarks.keeping import RESULTS, read
from benchmarks.kinds import MachineKind
from benchmarks.pictures import draw_kinds
from benchmarks.summary import Kind, Unit, amount_text

Results = Mapping[MachineKind, Mapping[str, Any]]
"""The parts of each kind of machine."""
FORMATS = (".png", ".svg", ".pdf")


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


def tables(results: Results) -> str:
    """For the log: a table of Markdown for each kind of machine and part, and one of shares for all kinds."""
    told = []
    for kind, parts in results.items():
        for name, part in parts.items():
            heading = f"### {name}: {kind.said}\n\n{_circumstances(part)}"
            told.append(f"{heading}\n\n{markdown_table(_of_part(part))}")
    if len(results) > 1:
        told.append(f"### Shares of the limit\n\n{markdown_table(_side_by_side(results))}")
    return "\n\n".join(told)


def _circumstances(part: Mapping[str, Any]) -> str:
    """Files that were kept before 2026-11-26 do not tell rounds and load."""
    more = f", {part['rounds']} rounds, load {part['load']} at the start" if "rounds" in part else ""
    return f"torch {part['torch']}, commit {part['commit']}, {part['date']}{more}"


def _of_part(part: Mapping[str, Any]) -> list[list[str]]:
    rows = [["", "lockstep", "", "other side", "", "result", "limit", "share"]]
    for line in part["lines"]:
        unit = Unit(line["unit"])
        times = "x" if line["kind"] == Kind.TIMES else ""
        result = amount_text(line["result"], unit) if line["kind"] == Kind.AMOUNT else f"{line['result']:.3g}{times}"
        limit = f"{line['limit']} {amount_text(line['limit_amount'], unit)}" if line["limit_amount"] else ""
        ours, other = amount_text(line["amount"], unit), amount_text(line["other_amount"], unit)
        share = f"{line['reached']:.0%}" if line["limit_amount"] else ""
        rows.append([line["what"], line["ours"], ours, line["other"], other, result, limit, share])
    return rows


def _side_by_side(results: Results) -> list[list[str]]:
    of_kinds = [shares(parts) for parts in results.values()]
    names = dict.fromkeys(name for found in of_kinds for name in found)
    rows = [["", *(kind.said for kind in results)]]
    return rows + [[name, *(f"{of[name]:.0%}" if name in of else "" for of in of_kinds)] for name in names]


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
    if options.picture and options.picture.suffix not in FORMATS:
        problem = f"--picture {options.picture} must end with {', '.join(FORMATS)}."
    elif options.picture and not options.picture.absolute().parent.is_dir():
        problem = f"--picture {options.picture}: there is no folder {options.picture.parent}. Make it, or name another."
    elif options.picture and find_spec("matplotlib") is None:
        problem = "--picture needs matplotlib: pip install 'lockstep-train[plot]'."
    if problem:
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
    print(tables(results), flush=True)
    try:
        if options.picture:
            draw_kinds(in_common({kind.said: shares(parts) for kind, parts in results.items()}), options.picture)
    except OSError as error:
        print(f"The picture {options.picture} cannot be written: {error.strerror}.", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
