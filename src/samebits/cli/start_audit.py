"""`samebits audit`: from its options to what a record is worth, and the exit code."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import SystemRandom
from typing import Any, NoReturn

import click

from samebits.cli.program import check_program, machine_for, program_from
from samebits.cli.under_way import Progress, UnderWay, screen
from samebits.errors import UsageError
from samebits.launcher.choices import OnStall, Recovery
from samebits.launcher.trials.trials import Files, Trials
from samebits.protocol.layout.mesh import Form
from samebits.protocol.run_folder import runs_folder
from samebits.verify.audit.audit import Audit, Audited, from_its_beginning, look_at, within
from samebits.verify.audit.checked import Checked, checked
from samebits.verify.audit.plan import Segment, Stretch, chosen, segments_of, stretches_of, with_steps
from samebits.verify.audit.report import show
from samebits.verify.repeat.started import OFFLINE

SEGMENTS = 3
_STEPS = re.compile(r"([0-9]{1,15})(?::([0-9]{1,15}))?")


def start(options: dict[str, Any]) -> NoReturn:
    """Audit, show what was found, and end with the exit code. Raises UsageError."""
    began = time.monotonic()
    _check(options)
    under_way = UnderWay(is_quiet=options["quiet"])
    progress = Progress(under_way)
    progress.watch("reading the record", None)
    runs, replays = runs_folder(os.environ), not options["no_replay"]
    what = checked(options["record"], options["words"], runs, is_module=options["module"], replays=replays)
    found = look_at(what, reads_states=True)
    under_way.end()
    segments = segments_of(what.first, what.record.last, what.states) if what.first else []
    found.num_segments = len(segments)
    if replays and not found.forged:
        wanted = _wanted(options, segments)
        found = replace(found, segments=wanted, replays=True, ranks=options["ranks"] or 1)
        found = from_its_beginning(within(found, wanted) if options["steps"] else found, what.first)
        _replay(options, what, found, under_way, progress)
    if options["as_json"]:
        click.echo(json.dumps(found.as_json()))
    else:
        show(found, what, screen(), seconds=time.monotonic() - began)
    sys.exit(found.exit_code)


def _check(options: Mapping[str, Any]) -> None:
    """Raise `UsageError` for options and words that cannot be."""
    first = next(iter(options["words"]), "")
    if options["record"].endswith(".py") or first.startswith("-"):
        raise UsageError(
            f"{options['record'] if not first.startswith('-') else first} does not stand where it belongs.",
            "Name the run or its record, then the script, then the script's arguments: samebits audit RUN train.py --epochs 5.",
        )
    given = [
        name
        for name, value in (
            ("--segments", options["segments"] is not None),
            ("--steps", options["steps"]),
            ("--all", options["is_all"]),
            ("--no-replay", options["no_replay"]),
        )
        if value
    ]
    if len(given) > 1:
        raise UsageError(f"{given[0]} and {given[1]} contradict each other.", "Give one of them.")
    if options["segments"] is not None and options["segments"] < 1:
        raise UsageError(f"--segments must be at least 1, but is {options['segments']}.", "Leave it out for 3.")
    if options["ranks"] is not None and options["ranks"] < 1:
        raise UsageError(f"-n must be at least 1, but is {options['ranks']}.", "Leave it out for one rank.")


def _wanted(options: Mapping[str, Any], segments: Sequence[Segment]) -> list[Segment]:
    if not segments:
        raise UsageError(f"{options['record']} has no step yet.", "Wait for the run's first step.")
    if options["steps"]:
        found = _STEPS.fullmatch(options["steps"])
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 0 < first <= last:
            raise UsageError(f"--steps {options['steps']} names no steps.", "Write --steps 1200:1240.")
        return with_steps(segments, first, last)
    if options["is_all"]:
        return list(segments)
    return chosen(segments, options["segments"] or SEGMENTS, SystemRandom())


def _replay(options: Mapping[str, Any], what: Checked, found: Audited, under_way: UnderWay, progress: Progress) -> None:
    """Make the segments again, and add what came of it to `found`."""
    begins = [step for step in what.begins if step not in found.damaged]
    stretches = stretches_of(found.segments, begins)
    settings = what.settings()
    if found.ranks > settings["lanes"]:
        raise UsageError(f"-n {found.ranks} is more than the run's {settings['lanes']} lanes.", "Give fewer ranks.")
    # Its trackers have what the run logged.
    os.environ.update(OFFLINE)
    os.chdir(what.place)
    check_program(what.script, what.is_module, "audit")
    told = {**settings, "module": what.is_module, "script": what.script, "args": what.args}
    machine = machine_for(settings["device"], is_quiet=True)
    program = program_from(told, found.ranks, machine, Form(options["strategy"]))
    program = replace(program, course=what.course())
    # What a run folder has chosen to be run is always said first.
    if not options["quiet"] or not what.names_script:
        under_way.say(_plan_text(stretches, what))
    recovery = Recovery(on_stall=OnStall.STOP, resume_nonfinite=True)
    files = Files(options["in_place"], under_way.note)
    with Trials(program, progress.watch, purpose="audit", files=files, recovery=recovery) as trials:
        audit = Audit(what, found.ranks, trials, _differences)
        try:
            with progress.until_stopped():
                for stretch in stretches:
                    found.outcomes.append(audit.make(stretch, settings["lanes"]))
                    if found.exit_code:
                        break
        except (SystemExit, UsageError):
            trials.remove()
            raise
        if found.exit_code:
            found.kept = trials.keep()
        else:
            trials.remove()


def _plan_text(stretches: Sequence[Stretch], what: Checked) -> str:
    steps = sum(one.last - one.begins_after for one in stretches)
    extra = sum(one.extra for one in stretches)
    ways = ", ".join(f"{one.begins_after + 1} to {one.last}" for one in stretches[:MOST_NAMED])
    more = f" and {len(stretches) - MOST_NAMED} more" if len(stretches) > MOST_NAMED else ""
    lacks = f"; {extra} of them only to get there" if extra else ""
    words = shlex.join([*["-m"] * what.is_module, what.script, *what.args])
    return f"runs {words} in {what.place}: {steps} of {len(what.record.lines)} steps again, {ways}{more}{lacks}"


MOST_NAMED = 4


def _differences(left: Path, right: Path) -> Mapping[str, Any]:
    """It needs torch, so it is loaded where two states differ."""
    compare = importlib.import_module("samebits.rank.checkpoint.format.comparison").compare
    found: Mapping[str, Any] = compare(left, right)
    return found
