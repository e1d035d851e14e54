"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from benchmarks.launching import measure_launch
from benchmarks.naive_split import measure_pipeline
from benchmarks.overhead import measure_overhead, overhead_table
from benchmarks.stepping import measure_steps
from benchmarks.summary import Line, table
from benchmarks.workloads import WORKLOADS

PARTS = ("steps", "alone", "launch", "pipeline", "overhead")


def comparisons(parts: list[str], rounds: int) -> list[Callable[[], Line]]:
    """What to measure, in order."""
    found: list[Callable[[], Line]] = []
    for part, num_ranks in (("steps", 2), ("alone", 1)):
        if part in parts:
            found += [lambda name=name, n=num_ranks: measure_steps(name, n, rounds) for name in WORKLOADS]
    if "launch" in parts:
        found += [lambda n=n: measure_launch(n, rounds) for n in (2, 8)]
    if "pipeline" in parts:
        found += [lambda m=m: measure_pipeline(m, rounds) for m in (8, 16)]
    return found


def machine() -> str:
    """The processor and the version of torch."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    models = [line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")]
    return f"{len(models)} x {models[0] if models else platform.processor()}, torch {version('torch')}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Compare lockstep with stock PyTorch.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"what to measure: {', '.join(PARTS)} [default: all]")
    parser.add_argument("--quick", action="store_true", help="6 rounds instead of 24")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}. Choose from {', '.join(PARTS)}.")
    lines = []
    parts = options.parts or list(PARTS)
    for number, measure in enumerate(todo := comparisons(parts, 6 if options.quick else 24)):
        print(f"\r{number + 1}/{len(todo)} ", end="", file=sys.stderr, flush=True)
        lines.append(measure())
    print("\r", end="", file=sys.stderr)
    overheads = [measure_overhead(n, 50 if options.quick else 400) for n in (1, 2)] if "overhead" in parts else []
    if options.json:
        told = {"lines": [asdict(line) for line in lines], "overhead": [asdict(one) for one in overheads]}
        print(json.dumps({"machine": machine(), **told}, indent=1))
        return
    tables = ([table(lines)] if lines else []) + ([overhead_table(overheads)] if overheads else [])
    print("\n\n".join([machine(), *tables]))


if __name__ == "__main__":
    main()
