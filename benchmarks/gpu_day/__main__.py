"""The first hour on a machine with GPUs: `make gpu-day`, or `python -m benchmarks.gpu_day` in a checkout. `--first`: its
first nine minutes, the most telling tasks first.

Needs torch for the GPU and what samebits needs; samebits itself need not be installed or compiled. A block has ten minutes,
and whatever comes of it, the next one begins. The record is written after each task. Exit code: 0; 1 when a task failed or
was cut off; 2 for wrong input, or without a GPU; 130 for Ctrl-C, with the record of what was done.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.ending import ends_shortly
from benchmarks.gpu_day import first
from benchmarks.gpu_day.blocks import BLOCKS, Day
from benchmarks.gpu_day.building import Building
from benchmarks.gpu_day.carrying_out import carry_out, rows
from benchmarks.gpu_day.hardware import Hardware, look
from benchmarks.gpu_day.outcome import BAD, Outcome
from benchmarks.gpu_day.record import file_for, record, write
from benchmarks.gpu_day.side_by_side import ENDING_S, Together, carry_out_together, usable_cores, width_of
from benchmarks.gpu_day.table import Progress, Table, columns_of, has_colours, summary
from benchmarks.gpu_day.tasks import ROOT, Task

MINUTES, LEAST_MINUTES, MOST_MINUTES = 9.0, 1.0, 30.0


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
        description="Try samebits on this machine's GPUs.",
        epilog=f"blocks:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--blocks", metavar="A,B,...", default="", help="only these [default: all]")
    parser.add_argument("--first", action="store_true", help="the most telling tasks, beside each other, in --minutes")
    parser.add_argument(
        "--minutes", type=float, metavar="N", help=f"with --first: for all of it [default: {MINUTES:.0f}]"
    )
    parser.add_argument(
        "--only", metavar="A,B,...", default="", help="with --first: tasks whose name has one of the words"
    )
    parser.add_argument("--commit", default="", help="of this checkout, for the record, where git cannot tell")
    parser.add_argument("--list", action="store_true", help="name the tasks, and run nothing")
    parser.add_argument(
        "--quick", action="store_true", help="one or two small tasks of each block: to try the command itself"
    )
    parser.add_argument("--json", action="store_true", help="print the record, not a table")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="where the record goes [default: benchmarks/gpu/DATE-HARDWARE.json]")  # fmt: skip
    options = parser.parse_args(words)
    options.blocks = [name.strip() for name in options.blocks.split(",") if name.strip()]
    problem = objection(options.blocks, options.out) or objection_to_first(
        options.first, options.blocks, options.minutes, options.only
    )
    if problem:
        parser.error(problem)
    options.minutes = MINUTES if options.minutes is None else options.minutes
    options.blocks = options.blocks or list(BLOCKS)
    return options


def objection_to_first(is_first: bool, blocks: Sequence[str], minutes: float | None, only: str = "") -> str:
    """The same for what `--first` adds."""
    if (minutes is not None or only) and not is_first:
        return f"{'--only' if only else '--minutes'} needs --first: without it, --blocks chooses, and each has ten minutes."
    if is_first and blocks:
        return "--first has tasks of its own. Leave out --blocks, or --first."
    if minutes is not None and not LEAST_MINUTES <= minutes <= MOST_MINUTES:
        few = (
            f"less than {LEAST_MINUTES:g} are too little for the first task"
            if minutes < LEAST_MINUTES
            else "without --first there are blocks for an hour"
        )
        return f"--minutes must be from {LEAST_MINUTES:g} to {MOST_MINUTES:g}, but is {minutes:g}: {few}."
    return ""


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
    began = time.monotonic()
    options = parse(sys.argv[1:])
    variables = surroundings(os.environ)
    hardware = look(variables)
    if isinstance(hardware, str):
        print(f"gpu-day: {hardware}", file=sys.stderr)
        return 2
    day = Day(hardware, options.quick)
    todo = first.chosen(first.tasks(day), options.only) if options.first else rows(day, options.blocks)
    if not todo:
        print(
            f"gpu-day: No task's name has one of the words of --only {options.only}; --first --list names them.",
            file=sys.stderr,
        )
        return 2
    left_out = [name for name in options.blocks if BLOCKS[name].least_gpus > day.gpus and not options.first]
    if options.list:
        name_tasks(todo, hardware, left_out)
        return 0
    return _try(options, day, todo, variables, began)


def _try(
    options: argparse.Namespace, day: Day, todo: list[tuple[str, Task]], variables: Mapping[str, str], began: float
) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the record is written then too
    now = dt.datetime.now(dt.UTC)
    where = options.out or file_for(day.hardware, now)
    names, colours = [(block, task.name) for block, task in todo], has_colours(sys.stdout, os.environ)
    table = Table(names, colours=colours, columns=columns_of(sys.stdout))
    progress = Progress(sys.stderr, len(todo))
    outcomes: list[Outcome] = []
    is_stopped = False
    if not options.json:
        print(f"{day.hardware}\n\n{table.head()}", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="gpu-day-") as folder,
        _building(options, day, variables, folder) as building,
    ):
        told = record(day.hardware, outcomes, now, 0.0, options.commit)
        try:
            for outcome in _outcomes(options, day, todo, variables, began, progress, building):
                outcomes.append(outcome)
                progress.clear()
                progress.done += 1
                more = {"built": {"state": building.state, "seconds": building.seconds}} if options.first else {}
                told = record(day.hardware, outcomes, now, time.monotonic() - began, options.commit, **more)
                if where is not None and not _written(told, where):
                    return 2
                if not options.json:
                    print(table.row(outcome), flush=True)
        except KeyboardInterrupt:
            is_stopped = True
            progress.clear()
    if options.json:
        print(json.dumps(told, indent=1))
    else:
        print(f"\n{summary(outcomes, time.monotonic() - began)}")
    if where is not None:
        print(f"the record is in {where}", file=sys.stderr)
    return 130 if is_stopped else int(any(outcome.state in BAD for outcome in outcomes))


@contextmanager
def _building(options: argparse.Namespace, day: Day, variables: Mapping[str, str], folder: str) -> Iterator[Building]:
    building = Building(Path(folder), variables, is_wanted=options.first and bool(day.hardware.no_compiled))
    try:
        yield building
    finally:
        building.end()


def _outcomes(
    options: argparse.Namespace, day: Day, todo: list[tuple[str, Task]], variables: Mapping[str, str], began: float,
    progress: Progress, building: Building,
) -> Iterator[Outcome]:  # fmt: skip
    if not options.first:
        return carry_out(day, todo, variables, lambda b, t, s: progress.tell(b, t.name, s, t.limit_s))
    limit_s = options.minutes * 60
    tell = lambda names: progress.tell_several(names, time.monotonic() - began, limit_s)  # noqa: E731
    width = width_of(usable_cores())
    return carry_out_together(
        todo, Together(day.hardware, variables, building, began + limit_s - ENDING_S, width, tell)
    )


def _written(told: dict[str, Any], where: Path) -> bool:
    try:
        write(told, where)
    except OSError as error:
        print(f"gpu-day: {where} cannot be written: {error.strerror}.", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
