"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.catalogue import PARTS, Amount
from benchmarks.ending import ends_shortly
from benchmarks.kinds import this_kind
from benchmarks.pictures import cannot_draw, draw_steps
from benchmarks.summary import Line, table
from benchmarks.workloads import WORKLOADS
from samebits.cli.under_way import UnderWay
from samebits.machine.cores import usable_cores
from samebits.rank.transport.local.native import why_not

CORES = 2
PICTURED = "steps"


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}", file=sys.stderr)
        sys.exit(2)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the options; exit with code 2 when they cannot be met here."""
    listed = "\n".join(f"  {name:14}{part.what}" for name, part in PARTS.items())
    parser = Parser(
        prog="python -m benchmarks",
        description="Compare samebits with stock PyTorch, side by side.",
        epilog=f"parts:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="what to measure [default: all]")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="6 rounds instead of 24 (of ResNet-20, whose steps vary most, 24 instead of 96)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, with every round")
    parser.add_argument("--picture", type=Path, metavar="FILE", help=f"draw {PICTURED}")
    parser.add_argument("--models", default="", metavar="NAME,NAME", help=f"only these of {', '.join(WORKLOADS)}")
    options = parser.parse_args(words)
    options.parts = options.parts or list(PARTS)
    problem = objection(options.parts, options.picture, usable_cores().count, why_not())
    if problem := problem or objection_to_models(options.parts, options.models):
        parser.error(problem)
    options.models = tuple(filter(None, options.models.split(",")))
    return options


def objection(parts: Sequence[str], picture: Path | None, cores: int, no_compiled: str) -> str:
    """Why this cannot be measured here, in one sentence; empty when it can."""
    if unknown := sorted(set(parts) - set(PARTS)):
        return f"There is no part {', '.join(unknown)}. Choose from {', '.join(PARTS)}."
    if cores < CORES:
        return f"The ranks of a comparison need {CORES} cores, and this process may use {cores}."
    needing = [name for name in parts if PARTS[name].compiled]
    if no_compiled and needing:
        return f"Without the compiled part {', '.join(needing)} cannot be measured: {no_compiled}."
    if picture is None:
        return ""
    if list(parts) != [PICTURED]:
        return f"A picture shows {PICTURED}. Name that part and no other."
    return cannot_draw(picture)


def objection_to_models(parts: Sequence[str], models: str) -> str:
    """Why these models cannot be chosen, in one sentence; empty when they can, or none are."""
    if not models:
        return ""
    if unknown := sorted(set(models.split(",")) - set(WORKLOADS)):
        return f"There is no model {', '.join(map(repr, unknown))}. Choose from {', '.join(WORKLOADS)}."
    if without := [name for name in parts if not PARTS[name].has_models]:
        choosing = ", ".join(name for name, part in PARTS.items() if part.has_models)
        return f"--models does not choose anything in {', '.join(without)}. Name parts that train several: {choosing}."
    return ""


def machine() -> str:
    """The kind of machine, the version of torch, and how busy it is."""
    return f"{this_kind().said}, torch {version('torch')}, load {os.getloadavg()[0]:.1f}"


class Measured:
    """What has been measured so far."""

    def __init__(self) -> None:
        self.lines: list[Line] = []

    def measure(self, parts: Sequence[str], amount: Amount) -> None:
        """Measure everything in order; on a terminal, a line says what is being measured."""
        todo = [measurement for name in parts for measurement in PARTS[name].plan(amount)]
        under_way = UnderWay()
        try:
            for number, measurement in enumerate(todo, 1):
                under_way.begin(f"{number}/{len(todo)} {measurement.label}")
                self.lines.extend(measurement.measure())
        finally:
            under_way.end()


def as_told(line: Line) -> dict[str, Any]:
    """A line as JSON, with what it comes to."""
    return {**asdict(line), "reached": line.reached, "met": line.met}


def report(options: argparse.Namespace, where: str, measured: Measured) -> None:
    """Print what was measured, and draw; the numbers come first, so that no picture can lose them."""
    together = measured.lines
    if options.json:
        print(json.dumps({"machine": where, "lines": [as_told(line) for line in together]}, indent=1))
    else:
        print(f"{where}\n{table([line for line in together if line.row])}")
    if options.picture is not None and together:
        try:
            draw_steps(together, options.picture)
        except OSError as error:
            print(f"The picture {options.picture} cannot be written: {error.strerror}.", file=sys.stderr)
            sys.exit(2)


def _end(*_: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


@ends_shortly
def main() -> None:
    options = parse(sys.argv[1:])
    where = machine()
    signal.signal(signal.SIGTERM, _end)  # so that what was started ends, too
    measured = Measured()
    try:
        measured.measure(options.parts, Amount(6 if options.quick else 24, options.models))
    except KeyboardInterrupt:
        if measured.lines:
            report(options, where, measured)
        raise
    report(options, where, measured)


if __name__ == "__main__":
    main()
