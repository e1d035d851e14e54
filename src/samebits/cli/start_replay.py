"""`samebits replay`: from its options to a step of a run that is made again, and its exit code."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

import click

from samebits.cli.program import check_program, machine_for, program_from
from samebits.cli.under_way import Progress, UnderWay, screen
from samebits.errors import UsageError
from samebits.launcher.choices import OnStall, Recovery
from samebits.launcher.terminal.terminal import Terminal
from samebits.launcher.trials.trials import Files, Program, Trials
from samebits.protocol.layout.mesh import Form
from samebits.protocol.run_folder import runs_folder
from samebits.verify.repeat.started import OFFLINE
from samebits.verify.replay.past_run import PastRun, past_run
from samebits.verify.replay.replay import Replayed, Wanted, begun, replay
from samebits.verify.replay.report import show


def start(options: dict[str, Any]) -> NoReturn:
    """Make the step again and show what was seen; end with the exit code. Raises UsageError."""
    began = time.monotonic()
    wanted, program = wanted_from(options)
    # Its trackers have what the run logged.
    os.environ.update(OFFLINE)
    under_way = UnderWay(is_quiet=options["quiet"] or wanted.pdb)
    progress = Progress(under_way)
    found, state = begun(wanted)
    terminal = Terminal(os.environ) if wanted.pdb else None
    files = Files(options["in_place"], under_way.note)
    if wanted.pdb:
        under_way.say(
            f"{found.title}: steps {found.begins_after + 1} to {wanted.step}; the debugger opens in the last one"
        )
    recovery = Recovery(on_stall=OnStall.REPORT if wanted.pdb else OnStall.STOP, resume_nonfinite=True)
    with Trials(program, progress.watch, purpose="replay", files=files, terminal=terminal, recovery=recovery) as trials:
        try:
            with progress.until_stopped():
                replay(wanted, found, state, trials)
        except (SystemExit, UsageError):
            trials.remove()
            raise
        if found.is_there:
            trials.remove()
        else:
            found.kept = trials.keep()
    tell(found, options, seconds=time.monotonic() - began)
    sys.exit(found.exit_code)


def tell(found: Replayed, options: dict[str, Any], *, seconds: float) -> None:
    """Print what was found."""
    if options["as_json"]:
        click.echo(json.dumps(found.as_json()))
    else:
        show(found, screen(), seconds=seconds, has_rows=options["rows"])


def wanted_from(options: dict[str, Any]) -> tuple[Wanted, Program]:
    """Check everything that can be checked before anything starts; the process goes to the run's folder.

    Raises:
        UsageError: with the fix.
    """
    step = options["step"]
    if step < 1:
        raise UsageError(f"--step must be at least 1, but is {step}.", "Count from 1, as the run does.")
    if options["ranks"] is not None and options["ranks"] < 1:
        raise UsageError(f"-n must be at least 1, but is {options['ranks']}.", "Leave it out for one rank.")
    if options["pdb"] and not _can_ask():
        raise UsageError("--pdb needs a terminal to ask.", "Call it in one, or leave --pdb out.")
    if options["pdb"] and options["as_json"]:
        raise UsageError("--pdb and --json both use the standard output.", "Give one of them.")
    past = past_run(options["run"], step, runs_folder(os.environ))
    if step in past.course.skipped:
        problem = f"{past.title} has no step {step}: its samples were passed over (--skip-steps {past.course.skipped})."
        raise UsageError(problem, "Name a step that it made.")
    ranks = _ranks(options["ranks"], past)
    os.chdir(past.place)
    check_program(past.script, past.is_module, "run")
    told = {
        **past.arithmetic,
        "module": past.is_module,
        "script": past.script,
        "args": past.args,
        "threads": past.threads,
        "device": past.device,
    }
    program = program_from(told, ranks, machine_for(past.device, is_quiet=True), Form(options["strategy"]))
    program = replace(program, course=past.course)
    return Wanted(past, step, ranks, options["rows"], options["pdb"], options["anomaly"]), program


def _can_ask() -> bool:
    """Whether there is a terminal, or a pipe with commands."""
    with suppress(OSError, ValueError, AttributeError):
        mode = os.fstat(sys.stdin.fileno()).st_mode
        return sys.stdin.isatty() or stat.S_ISFIFO(mode)
    return False


def _ranks(given: int | None, past: PastRun) -> int:
    ranks = given or past.needs_ranks or 1
    if past.needs_ranks and ranks != past.needs_ranks:
        raise UsageError(f"That run depends on its {past.needs_ranks} ranks.", "Leave -n out.")
    if ranks > past.lanes:
        lanes = f"{past.lanes} lane{'s' * (past.lanes != 1)}"
        raise UsageError(f"-n {ranks} is more than the run's {lanes}.", f"Give at most {past.lanes}.")
    return ranks
