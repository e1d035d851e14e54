"""`launch`: one run from its request to its outcome.

Used by `samebits run`, and by `samebits verify` several times in one process with one nursery.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress

from samebits.errors import SamebitsError, UsageError
from samebits.launcher.diagnosis.findings import CROWDED_CORES, EARLY_LEAVER, STARVED_LOADER
from samebits.launcher.event_log import EventLog
from samebits.launcher.folder import make_run_folder, remove_run_folder
from samebits.launcher.nodes.cluster import Cluster
from samebits.launcher.nursery.handle import NurseryHandle
from samebits.launcher.nursery.kept import modules_for, torch_variables_for
from samebits.launcher.proofs import with_its_source
from samebits.launcher.request import LaunchRequest, Outcome
from samebits.launcher.signals import CaughtSignals
from samebits.launcher.supervise.attempt import Attempt, evidence_of
from samebits.launcher.supervise.attempts import Attempts
from samebits.launcher.supervise.joining import join_nodes
from samebits.launcher.terminal.cases import Cases, Losses
from samebits.launcher.terminal.failure_block import annotation, failure_block, last_work, lost_block
from samebits.launcher.terminal.report import (
    Line,
    Seconds,
    StatesLeft,
    alone_line,
    done_here_line,
    end_lines,
    is_long,
    opening_line,
    opens_at_once,
    stopped_line,
)
from samebits.launcher.terminal.terminal import Console, Terminal
from samebits.launcher.tracking import start_tracking
from samebits.protocol.run_folder import RunFolder, write_private
from samebits.protocol.saving import OFF


def launch(
    request: LaunchRequest,
    terminal: Terminal | None = None,
    nursery: NurseryHandle | None = None,
    signals: CaughtSignals | None = None,
) -> Outcome:
    """Run a script on `request.placement.ranks` ranks until all have ended; no process of the run is left behind.

    Args:
        request: what to run.
        terminal: where to show it; None shows nothing, and rank 0 has no standard input.
        nursery: one to use and leave open; its threads must be those of the request. None: one for this run.
        signals: lets another thread stop the run; None: only this process's own signals do.

    Raises:
        UsageError: when the nursery was started for other threads, or the run folder cannot be made.
        EnvironmentFailure: when torch cannot be imported, or the nursery is killed.
    """
    began_ns = time.monotonic_ns()
    _open_standard_streams()
    if nursery is not None and nursery.threads != request.placement.threads:
        raise UsageError(
            f"The nursery was started for {nursery.threads} thread{'s' * (nursery.threads != 1)} per rank, not "
            f"{request.placement.threads}.",
            "Start a nursery for each number of threads.",
        )
    variables = torch_variables_for(request) if nursery is None else {}
    console = Console(terminal)
    make_run_folder(request)
    if nursery is not None:
        return _launch(request, console, nursery, (began_ns, signals or CaughtSignals()))
    with NurseryHandle(request.placement.threads, modules_for(request), variables) as own:
        return _launch(request, console, own, (began_ns, signals or CaughtSignals()))


def _launch(
    request: LaunchRequest, console: Console, nursery: NurseryHandle, start: tuple[int, CaughtSignals]
) -> Outcome:
    request = with_its_source(request)
    if not request.output.is_quiet and opens_at_once(request):
        console.line(opening_line(request, {}))
    if request.nodes.place.is_one_node:
        return _run(request, console, nursery, start)
    cluster = None
    try:
        cluster = join_nodes(request, nursery, console)
        return _run(request, console, nursery, start, cluster)
    except SamebitsError as error:
        if cluster is not None:
            error.known_to = cluster.knowing()
        raise
    finally:
        if cluster is not None:
            cluster.close()
        if cluster is None or not cluster.has_begun:
            # Nothing ran that could have left something worth keeping.
            remove_run_folder(request)


def _run(
    request: LaunchRequest,
    console: Console,
    nursery: NurseryHandle,
    start: tuple[int, CaughtSignals],
    cluster: Cluster | None = None,
) -> Outcome:
    began_ns, signals = start
    cases = Cases(RunFolder(request.output.run_folder).findings)
    losses = Losses(console, cases)
    if request.placement.crowded:
        cases.add(CROWDED_CORES, request.placement.crowded)
    events = EventLog(RunFolder(request.output.run_folder))
    tracking = start_tracking(request, console)
    attempt = Attempts(request, nursery, losses, began_ns, signals, events, cluster).run()
    ending, verdict = attempt.ending, attempt.verdict
    lost = [*losses.sentences, *console.lost()]
    if attempt.block is None:
        block = failure_block(verdict, evidence_of(attempt, RunFolder(request.output.run_folder)))
    else:
        block = attempt.block
    outcome = Outcome(
        exit_code=verdict.exit_code or (1 if lost else 0),
        run_folder=request.output.run_folder,
        failure=verdict.culprit.failure if verdict.culprit is not None else None,
        block=block or lost_block(lost),
        joined=ending.joined or len(ending.ends) == 1,
        duration_s=(time.monotonic_ns() - began_ns) / 1e9,
        rank=verdict.culprit.rank if verdict.culprit is not None else None,
        interrupted_by=ending.interrupted_by,
    )
    _note_outcome(outcome, attempt)
    _note_finding(cases, attempt)
    events.summarize(
        request,
        {"exit_code": outcome.exit_code, "signal": outcome.interrupted_by, "seconds": round(outcome.duration_s, 3)},
    )
    if tracking is not None:
        tracking.close(outcome.exit_code)
    seconds = events.seconds(outcome.duration_s, attempt.observer.result())
    _say_ending(request, console, outcome, attempt, seconds)
    # The caller of a function gets an exception instead.
    if request.entry.call is None and not outcome.interrupted_by:
        _say_trouble(request, console, outcome, cases)
        culprit = verdict.culprit
        if os.environ.get("GITHUB_ACTIONS") == "true" and culprit is not None and culprit.rank in request.numbers:
            doing = last_work(attempt.observer.tail(culprit.rank))
            console.command(annotation(culprit, doing, os.environ.get("GITHUB_WORKSPACE", "")))
    return outcome


def _note_outcome(outcome: Outcome, attempt: Attempt) -> None:
    """Keep how the run ended in its folder; a full disk loses the record, not the run."""
    record = {
        "exit_code": outcome.exit_code,
        "duration_s": round(outcome.duration_s, 3),
        "rank": outcome.rank,
        "signal": outcome.interrupted_by,
        "block": outcome.block,
        "ends": {
            end.rank: {"code": end.code, "signal": end.signal, "stopped": end.stopped} for end in attempt.ending.ends
        },
    }
    with suppress(OSError):
        write_private(RunFolder(outcome.run_folder).outcome, json.dumps(record, indent=1) + "\n")


def _note_finding(cases: Cases, attempt: Attempt) -> None:
    """Keep what only the verdict over all ranks can show."""
    verdict = attempt.verdict
    if verdict.left_early:
        cases.add(EARLY_LEAVER, verdict.leavers_text, [end.rank for end in verdict.left_early])
    found = attempt.observer.summary()
    if found.is_starved and is_long(attempt.observer.result()):
        cases.add(STARVED_LOADER, found.advice)


def _say_ending(request: LaunchRequest, console: Console, outcome: Outcome, attempt: Attempt, seconds: Seconds) -> None:
    """Say how the run ended."""
    console.settle()
    if outcome.interrupted_by:
        ending = attempt.ending
        left = StatesLeft(ending.saved, attempt.newest_step, ending.waited_s, ending.problem) if attempt.saves else None
        if request.entry.call is None or not request.output.is_quiet:
            console.line(stopped_line(outcome.interrupted_by, outcome.duration_s, request.output.run_folder, left))
        return
    if not outcome.joined and outcome.exit_code == 0 and request.entry.call is None:
        console.line(alone_line(len(attempt.ending.ends)))
    if outcome.exit_code == 0 and not attempt.observer.uses_samebits:
        for line in _unused(request):
            console.line(line)
    if outcome.rank is None and not request.output.is_quiet:
        if attempt.first_node:
            numbers = [end.rank for end in attempt.ending.ends]
            console.line(done_here_line(numbers, attempt.first_node, outcome.duration_s))
            return
        seen = attempt.observer
        for line in end_lines(request, seen.result(), seen.decided(), seen.summary(), seconds):
            console.line(line)


def _unused(request: LaunchRequest) -> list[Line]:
    """What was requested of a script that does without `samebits.init`."""
    course = request.computation.course
    asked = {
        "--save-every saved nothing": request.saving is not None and bool(request.saving.every),
        "--from began with no state": course.parent is not None,
        "--skip-steps passed over nothing": bool(course.skipped),
        "--check-every compared nothing": request.computation.check_every not in {"", OFF},
    }
    return [
        Line("warning", f"{what}: the script did not call samebits.init().")
        for what, is_asked in asked.items()
        if is_asked
    ]


def _say_trouble(request: LaunchRequest, console: Console, outcome: Outcome, cases: Cases) -> None:
    """Say last of all how the run failed, and which findings there were."""
    see_also = cases.see_also(request.output.run_folder) if not request.output.is_quiet else ""
    if outcome.block:
        console.block(f"{outcome.block}\n  see     {see_also}" if see_also else outcome.block)
    elif see_also:
        console.line(Line("see also", see_also))


def _open_standard_streams() -> None:
    """Open a closed descriptor 0, 1 or 2: some file would get its number, and ranks would write into it."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
