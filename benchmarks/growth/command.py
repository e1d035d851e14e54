"""`python -m benchmarks growth`: how time, memory, descriptors and keys grow with the ranks of this node."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from benchmarks.growth.runs import measured
from benchmarks.growth.table import LEGEND, as_json, table_of_growth
from lockstep.cli.under_way import UnderWay
from lockstep.node.native import why_not

NAME = "growth"
MOST, MOST_OF_ALL, MOST_QUICKLY = 64, 128, 16
SECONDS, SECONDS_QUICKLY = 1.0, 0.3


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}", file=sys.stderr)
        sys.exit(2)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the options; exit with code 2 when they cannot be met here."""
    parser = Parser(
        prog=f"python -m benchmarks {NAME}",
        description="How time, memory, descriptors and keys grow with the ranks of this node.",
    )
    parser.add_argument("--quick", action="store_true", help=f"up to {MOST_QUICKLY} ranks, shorter")
    parser.add_argument("--most", type=int, metavar="N", help=f"the most ranks [default: {MOST}]")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(words)
    if options.most is None:
        options.most = MOST_QUICKLY if options.quick else MOST
    if not 1 <= options.most <= MOST_OF_ALL:
        parser.error(f"--most must be from 1 to {MOST_OF_ALL}, but is {options.most}. Leave it out for {MOST}.")
    if problem := why_not():
        parser.error(f"Without the compiled part growth cannot be measured: {problem}.")
    return options


def sizes(most: int) -> list[int]:
    """1, 2, 4, ... and the greatest itself."""
    powers = [1 << exponent for exponent in range(most.bit_length()) if 1 << exponent < most]
    return [*powers, most]


def run(words: Sequence[str]) -> None:
    """Measure each number of ranks in turn, and print what was found."""
    options = parse(words)
    found = {}
    under_way = UnderWay()
    try:
        for ranks in sizes(options.most):
            under_way.begin(f"{ranks} of {options.most} ranks")
            found[ranks] = measured(ranks, SECONDS_QUICKLY if options.quick else SECONDS)
    finally:
        under_way.end()
    if options.json:
        print(json.dumps({"cores": os.cpu_count(), "rows": as_json(found)}, indent=1))
    else:
        print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}\n{table_of_growth(found)}\n{LEGEND}")
