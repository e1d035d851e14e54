"""`samebits bench`: from its options to a measurement, its tables, its picture and its exit code."""

from __future__ import annotations

import importlib
import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import click

from samebits.bench.bench import Runners, measure
from samebits.bench.picture import FORMATS, draw
from samebits.bench.plan import Amount, Bench, parse_strategies, with_all_threads
from samebits.bench.reasons import sentences
from samebits.bench.report import show
from samebits.bench.results import Results
from samebits.cli.program import check_program, machine_for, program_from
from samebits.cli.under_way import UnderWay, screen
from samebits.errors import UsageError
from samebits.launcher.sizing import MAX_AUTO_CPU_RANKS
from samebits.launcher.trials.trials import Files, Trials
from samebits.machine.regular_file import other_kind
from samebits.protocol.installation import to_install
from samebits.protocol.layout.mesh import strategy_named

BUSY_LOAD = 0.7
"""Load per core above which a machine is called busy."""


def start(options: dict[str, Any]) -> NoReturn:
    """Measure what the options say; end with the exit code. Raises UsageError."""
    plot = check_plot(options["plot"])
    under_way = UnderWay(is_quiet=options["quiet"])
    wanted = bench_from(options)
    if (load := os.getloadavg()[0]) > wanted.cores * BUSY_LOAD:
        under_way.note(f"this machine is busy (load {load:.1f} on {wanted.cores} cores); speeds will vary")
    results = _measure(wanted, options["in_place"], under_way)
    under_way.end()
    if results.interrupted_by:
        under_way.say("stopped; here are the results so far")
    if options["as_json"]:
        click.echo(json.dumps({**results.as_json(), "says": list(sentences(results))}, allow_nan=False))
    else:
        show(results, screen())
    if plot is not None and results.base is not None:
        draw(results, plot)
    sys.exit(results.exit_code)


def _measure(wanted: Bench, in_place: bool, under_way: UnderWay) -> Results:
    with ExitStack() as stack:
        files = Files(in_place, under_way.note)
        usual = stack.enter_context(Trials(wanted.program, _silent, purpose="bench", files=files))
        trials = [usual]
        if wanted.program.device == "cpu" and wanted.program.threads < wanted.cores:
            program = with_all_threads(wanted.program, wanted.cores)
            trials.append(stack.enter_context(Trials(program, _silent, purpose="bench", files=Files(in_place))))
        results = None
        try:
            results = measure(wanted, Runners(usual, trials[1] if trials[1:] else None, under_way.end, under_way.begin))
        finally:
            keep = results is not None and results.exit_code in (1, 2)
            for each in trials[1:] if keep else trials:
                each.remove()
        if keep:
            results.kept, results.folder = usual.keep(), str(usual.base)
        return results


def bench_from(options: dict[str, Any]) -> Bench:
    """Check everything that can be checked before anything starts.

    Raises:
        UsageError: with the fix.
    """
    for name in ("steps", "rounds", "lanes"):
        if options[name] is not None and options[name] < 1:
            raise UsageError(f"--{name} must be at least 1, but is {options[name]}.", "Leave it out for the default.")
    strategies = parse_strategies([strategy_named(name.strip()) for name in options["strategies"].split(",")])
    check_program(options["script"], options["module"], "bench")
    machine = machine_for(options["device"], is_quiet=options["quiet"])
    ranks = parse_ranks(options["ranks"]) if options["ranks"] else _default_ranks(machine.gpus or machine.cores.count)
    program = program_from(options, max(ranks), machine)
    amount = Amount(options["steps"], options["rounds"])
    return Bench(program, strategies, ranks, options["lanes"], amount, machine.cores.count)


def _default_ranks(devices: int) -> tuple[int, ...]:
    return tuple(dict.fromkeys((1, min(devices, MAX_AUTO_CPU_RANKS))))


def parse_ranks(text: str) -> tuple[int, ...]:
    """`1,2,4` as numbers without repetition, in the given order.

    Raises:
        UsageError: for anything but numbers of at least 1 with commas between them.
    """
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) >= 1 for word in words):
        raise UsageError(
            f"--ranks must be numbers of at least 1, separated by commas, but is {text!r}.", "Try --ranks 1,2."
        )
    return tuple(dict.fromkeys(map(int, words)))


def check_plot(text: str | None) -> Path | None:
    """The path of the picture.

    Raises:
        UsageError: when it could not be drawn or written at the end.
    """
    if text is None:
        return None
    path = Path(text)
    try:
        importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise UsageError(
            f"--plot draws with matplotlib, which cannot be imported ({error}).",
            f"Install it: {to_install('plot')}.",
        ) from None
    if path.suffix not in FORMATS:
        raise UsageError(f"--plot {text} has an ending that is not supported.", f"Let it end in {', '.join(FORMATS)}.")
    if not path.parent.is_dir() or not os.access(path.parent, os.W_OK) or other_kind(path):
        raise UsageError(f"--plot {text} cannot be written.", "Choose a file in a folder that exists and is writable.")
    return path


def _silent(_label: str, _seconds: float | None) -> None:
    """Do nothing: the rounds say what is under way."""
