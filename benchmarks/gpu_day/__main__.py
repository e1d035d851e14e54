"""The first hour on a machine with GPUs: `make gpu-day`, or `python -m benchmarks.gpu_day` in a checkout.

Needs torch for the GPU and what lockstep needs; lockstep itself need not be installed or compiled. A block has ten minutes,
and whatever comes of it, the next one begins. Exit code: 0; 1 when a task failed or was cut off; 2 for wrong input, or
without a GPU; 130 for Ctrl-C, with the record of what was done.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from benchmarks.ending import ends_shortly
from benchmarks.gpu_day.blocks import BLOCKS, Day
from benchmarks.gpu_day.carrying_out import carry_out, rows
from benchmarks.gpu_day.hardware import Hardware, look
from benchmarks.gpu_day.outcome import BAD, Outcome
from benchmarks.gpu_day.record import file_for, record, write
from benchmarks.gpu_day.table import Progress, Table, columns_of, has_colours, summary
from benchmarks.gpu_day.tasks import ROOT, Task


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}", file=sys.stderr)
        sys.exit(2)


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The options; exit with code 2 when they cannot be met."""
    listed = "\n".join(f"  {name:12}{block.what}" for name, block in BLOCKS.items())
    parser = Parser(
        prog="python -m benchmarks.gpu_day",
        description="Try lockstep on this machine's GPUs.",
        epilog=f"blocks:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--blocks", metavar="A,B,...", default="", help="only these [default: all]")
    parser.add_argument("--list", action="store_true", help="name the tasks, and run nothing")
    parser.add_argument(
        "--quick", action="store_true", help="one or two small tasks of each block: to try the command itself"
    )
    parser.add_argument("--json", action="store_true", help="print the record, not a table")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="where the record goes [default: benchmarks/gpu/DATE-HARDWARE.json]")  # fmt: skip
    options = parser.parse_args(words)
    options.blocks = [name.strip() for name in options.blocks.split(",") if name.strip()]
    if problem := objection(options.blocks, options.out):
        parser.error(problem)
    options.blocks = options.blocks or list(BLOCKS)
    return options


def objection(blocks: Sequence[str], out: Path | None) -> str:
    """Why these options cannot be met, in a sentence; empty if they can."""
    if unknown := [name for name in blocks if name not in BLOCKS]:
        return f"There is no block {', '.join(map(repr, unknown))}. Choose from {', '.join(BLOCKS)}."
    if len(set(blocks)) != len(blocks):
        return f"--blocks {','.join(blocks)} names a block twice. Name each once."
    if out is None:
        return ""
    if out.suffix != ".json":
        return f"--out {out} must end with .json."
    if not out.absolute().parent.is_dir():
        return f"--out {out}: the folder {out.parent} does not exist."
    if out.is_dir():
        return f"--out {out} is a folder. Name a file in it."
    return (
        "" if os.access(out if out.exists() else out.absolute().parent, os.W_OK) else f"--out {out} cannot be written."
    )


def surroundings(variables: Mapping[str, str]) -> dict[str, str]:
    """The tasks' environment: this checkout comes first, and nothing waits for a terminal or a launcher around it."""
    path = [str(ROOT / "src"), str(ROOT), variables.get("PYTHONPATH", "")]
    kept = {name: value for name, value in variables.items() if not name.startswith("PYTEST_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, path)), "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}


def name_tasks(todo: Sequence[tuple[str, Task]], hardware: Hardware, left_out: Sequence[str]) -> None:
    """Print what would run."""
    width = max([5, *(len(block) for block, _ in todo)])
    for block, task in todo:
        missing = task.missing(hardware)
        print(f"{block:{width}}  {task.name}{f' (not here: {missing})' if missing else ''}")
    for block in left_out:
        print(f"{block:{width}}  (not here: it needs {BLOCKS[block].least_gpus} GPUs)")


@ends_shortly
def main() -> int:
    """Try everything; the exit code."""
    options = parse(sys.argv[1:])
    variables = surroundings(os.environ)
    hardware = look(variables)
    if isinstance(hardware, str):
        print(f"gpu-day: {hardware}", file=sys.stderr)
        return 2
    day = Day(hardware, options.quick)
    todo = rows(day, options.blocks)
    left_out = [name for name in options.blocks if BLOCKS[name].least_gpus > day.gpus]
    if options.list:
        name_tasks(todo, hardware, left_out)
        return 0
    return _try(options, day, todo, variables)


def _try(options: argparse.Namespace, day: Day, todo: list[tuple[str, Task]], variables: Mapping[str, str]) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the record is written then too
    began, now = time.monotonic(), dt.datetime.now(dt.UTC)
    names, colours = [(block, task.name) for block, task in todo], has_colours(sys.stdout, os.environ)
    table = Table(names, colours=colours, columns=columns_of(sys.stdout))
    progress = Progress(sys.stderr, len(todo))
    outcomes: list[Outcome] = []
    is_stopped = False
    if not options.json:
        print(f"{day.hardware}\n\n{table.head()}", flush=True)
    try:
        for outcome in carry_out(day, todo, variables, lambda b, t, s: progress.tell(b, t.name, s, t.limit_s)):
            outcomes.append(outcome)
            progress.clear()
            progress.done += 1
            if not options.json:
                print(table.row(outcome), flush=True)
    except KeyboardInterrupt:
        is_stopped = True
        progress.clear()
    seconds = time.monotonic() - began
    told = record(day.hardware, outcomes, now, seconds)
    where = options.out or file_for(day.hardware, now)
    if options.json:
        print(json.dumps(told, indent=1))
    else:
        print(f"\n{summary(outcomes, seconds)}")
    if where is not None:
        try:
            write(told, where)
        except OSError as error:
            print(f"gpu-day: {where} cannot be written: {error.strerror}.", file=sys.stderr)
            return 2
        print(f"the record is in {where}", file=sys.stderr)
    return 130 if is_stopped else int(any(outcome.state in BAD for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
