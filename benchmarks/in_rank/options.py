"""The command line of what runs in the ranks; `measure_in_ranks` writes it."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.workloads import WORKLOADS


def rank_parser(*, workload: bool = False, bare: bool = False) -> argparse.ArgumentParser:
    """Options of every comparison: `--rounds`, `--to`; where wanted, what to train and the library of bare loops."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--to", type=Path, required=True)
    if workload:
        parser.add_argument("--workload", choices=WORKLOADS, required=True)
    if bare:
        parser.add_argument("--bare", type=Path, required=True)
    return parser
