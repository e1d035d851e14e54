"""`samebits verify` of a script without our calls: from its options to the comparison of runs with runs, and its exit code."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from samebits.cli.step_summary import append_summary
from samebits.cli.under_way import Progress, UnderWay, screen
from samebits.errors import UsageError
from samebits.launcher.trials.trials import RunsFolder
from samebits.verify.plain import SCRIPT
from samebits.verify.repeat.commits import Commit, worktree
from samebits.verify.repeat.one_step import compare_step
from samebits.verify.repeat.repeat import Proof, Side, repeat
from samebits.verify.repeat.report import show
from samebits.verify.repeat.result import Repeated
from samebits.verify.repeat.saved_operators import Saved, SavedOperators
from samebits.verify.repeat.started import Command, Runs
from samebits.verify.result import CANNOT_TELL

DEFAULT_STEPS, DEFAULT_TIMEOUT_S = 20, 600.0
RUNS_ONLY = ("repeat", "against_commit", "python", "num_processes", "timeout")
"""Options that only runs of one script have."""
RANKS_ONLY = (
    *("ranks", "lanes", "strategy", "mesh", "schedule", "precision", "numerics", "allow", "accept", "interrupt"),
    *("threads", "device"),
)
"""Those of runs with lanes. A script without our calls is started as it is, so it decides about threads and devices itself."""


def asked_for(options: Mapping[str, Any]) -> bool:
    """Whether an option is given that means runs of one script."""
    return any(is_given(options, name) for name in RUNS_ONLY)


def is_given(options: Mapping[str, Any], name: str) -> bool:
    """Whether an option stands on the command line; 0 does."""
    value = options.get(name)
    if name == "where":
        return value is not None
    return value is not None and value is not False and value not in ((), "") and (name, value) != ("device", "auto")


def start(options: dict[str, Any], save: Path | None, against: tuple[Path, Saved] | None) -> NoReturn:
    """Compare runs with runs as the options say; end with the exit code. Raises UsageError."""
    began = time.monotonic()
    command = command_from(options)
    check(options, command, against)
    step = recorded_step(options, against)
    under_way = UnderWay(is_quiet=options["quiet"])
    progress = Progress(under_way)
    folder = RunsFolder("verify")
    result: Repeated | None = None
    with _ended_by_signals():
        try:
            with worktree(options["against_commit"], command.script, folder.path) as commit:
                sides = sides_from(options, command, commit, is_alone=against is not None)
                proof = Proof(
                    sides,
                    step or options["steps"] or (against[1].steps if against is not None else DEFAULT_STEPS),
                    options["timeout"] or DEFAULT_TIMEOUT_S,
                    are_equal=commit is None and not options["python"],
                    where=options["where"] is not None,
                    save=save,
                    against=against,
                )
                runs = Runs(
                    folder.path,
                    progress.watch,
                    under_way.note,
                    in_place=options["in_place"],
                    limit_s=proof.limit_s,
                )
                result = compare_step(proof, runs) if step is not None else repeat(proof, runs)
        except (KeyboardInterrupt, SystemExit) as ending:
            code = ending.code if isinstance(ending, SystemExit) else 128 + signal.SIGINT
            progress.say_stopped(int(code or 1))
            sys.exit(code)
        finally:
            if result is None or result.exit_code == 0:
                folder.remove()
            else:
                result.kept, result.folder = folder.keep(), str(folder.path)
            folder.close()
    seconds = time.monotonic() - began
    if options["as_json"]:
        click.echo(json.dumps(result.as_json(), allow_nan=False))
    else:
        show(result, screen(), seconds=seconds)
    append_summary(options["summary"], options["script"], partial(show, result, seconds=seconds))
    sys.exit(result.exit_code)


def command_from(options: Mapping[str, Any]) -> Command:
    """How the script is started."""
    is_module = options["module"]
    return Command(
        None if is_module else Path(options["script"]),
        options["script"] if is_module else None,
        tuple(options["args"]),
        sys.executable,
        options["num_processes"],
    )


def check(options: Mapping[str, Any], command: Command, against: tuple[Path, Saved] | None) -> None:
    """Raises UsageError for options that do not go together."""
    for name in RANKS_ONLY:
        if is_given(options, name):
            asked = next((one for one in RUNS_ONLY if is_given(options, one)), None)
            why = f"--{asked.replace('_', '-')}" if asked is not None else "a script without samebits.init()"
            raise UsageError(
                f"--{name} is about ranks with lanes, but {why} compares runs of the script as it is started.",
                f"Leave out --{name}.",
            )
    for name in ("repeat", "num_processes", "timeout", "steps"):
        if options[name] is not None and not options[name] > 0:
            spelled = {"num_processes": "-n"}.get(name, f"--{name}")
            raise UsageError(f"{spelled} must be more than 0, but is {options[name]}.", "Leave it out for the default.")
    sides = [name for name in ("repeat", "against", "against_commit", "python") if options[name]]
    if len(sides) > 1:
        spelled = ", ".join(f"--{name.replace('_', '-')}" for name in sides)
        raise UsageError(f"{spelled} name different things to compare with.", "Give one of them.")
    if against is not None and against[1].script != command.name:
        raise UsageError(
            f"{against[0]} has the bits of {against[1].script}, not of {command.name}.",
            f"Name that script, or write the file again with --save; --accept {SCRIPT} is for scripts with lanes.",
        )


def recorded_step(options: Mapping[str, Any], against: tuple[Path, Saved] | None) -> int | None:
    """The step whose operators are in a file, or go to one; None where bits are compared.

    Raises:
        UsageError: where nothing can be compared so.
    """
    where = options["where"]
    if where and not (where.isdecimal() and int(where) > 0):
        raise UsageError(f"--where must be a step from 1 on, but is {where}.", "Leave it out for the one that differs.")
    step = int(where) if where else None
    if against is not None and isinstance(against[1], SavedOperators):
        if step not in (None, against[1].steps):
            raise UsageError(
                f"{against[0]} has the operators of step {against[1].steps}, not of step {step}.", f"Leave out {step}."
            )
        step = against[1].steps
    elif against is not None and where is not None:
        raise UsageError(
            f"{against[0]} has bits and no operators, so --where finds none.",
            f"Write them there with --save FILE --where {step or 'STEP'}, or give the commit: --against-commit REV --where.",
        )
    elif step is not None and not options["save"]:
        raise UsageError(
            f"--where {step} names a step, but no file is named for its operators.",
            f"Leave out {step}: the step that differs is found. For another machine: --save FILE --where {step}.",
        )
    if step is not None and options["steps"] is not None:
        raise UsageError(f"--steps is not needed: the runs end behind step {step}.", "Leave out --steps.")
    return step


def sides_from(
    options: Mapping[str, Any], command: Command, commit: Commit | None, *, is_alone: bool
) -> tuple[Side, ...]:
    """The runs that are compared. Raises UsageError for an interpreter that is none."""
    if commit is not None:
        moved = (str(commit.root), str(commit.place))
        return Side("this tree", command), Side(commit.name, command, commit.folder, moved)
    if options["python"]:
        named = [word for word in options["python"].split(",") if word]
        pythons = [sys.executable, *named] if len(named) == 1 else named
        for one in pythons:
            if shutil.which(one) is None:
                raise UsageError(f"--python {one} cannot be started.", "Give the path of a Python interpreter.")
        names = [_short(one) for one in pythons]
        names = names if len(set(names)) == len(names) else pythons
        found = [str(shutil.which(one)) for one in pythons]
        return tuple(Side(name, replace(command, python=one)) for name, one in zip(names, found, strict=True))
    count = 1 if is_alone else options["repeat"] or 2
    return tuple(Side(f"run {number}", command) for number in range(1, count + 1))


def _short(python: str) -> str:
    """The environment of an interpreter, as a person calls it."""
    path = Path(python)
    return path.parent.parent.name if path.parent.name == "bin" and os.sep in python else python


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Signals that end a process end it as Ctrl-C does: what it has started is ended first, whatever signals follow."""

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + number)

    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # One that is ignored stays so, as behind nohup.
    before = {one: handler for one in ending if (handler := signal.getsignal(one)) is not signal.SIG_IGN}
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def cannot_tell(error: UsageError, *, as_json: bool) -> NoReturn:
    """End where the script itself cannot be started while it is compared with a file: `git bisect run` skips this commit."""
    text = str(error)
    if as_json:
        click.echo(json.dumps({"verdict": "cannot tell", "exit_code": CANNOT_TELL, "why": text}))
    else:
        click.echo(f"CANNOT TELL {text}", err=True)
    sys.exit(CANNOT_TELL)
