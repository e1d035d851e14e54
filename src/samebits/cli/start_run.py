"""`samebits run`: from its options to a launch, and what is said before and behind it.

Apart from the options, because it needs the launcher, and `--help` does not.
"""

from __future__ import annotations

import os
from typing import Any

from samebits.cli.launch_request import request_from, steps_from
from samebits.cli.script_words import strays
from samebits.launcher.launcher import launch
from samebits.launcher.record_facts import record_text
from samebits.launcher.request import LaunchRequest
from samebits.launcher.script_source import source_of
from samebits.launcher.terminal.report import Line, branch_lines
from samebits.launcher.terminal.terminal import Console, Terminal
from samebits.protocol.run_folder import RunFolder
from samebits.show.trace import write_trace

MISPLACED = (
    *("-n", "--nproc-per-node", "--lanes", "--threads", "--strategy", "--mesh", "--precision", "--start-method"),
    *("--from", "--skip-steps"),
)
"""Options of ours that nearly always belong before the script."""


def start(options: dict[str, Any]) -> int:
    """Launch what the options say; returns the exit code. Raises UsageError."""
    steps = steps_from("--prove", options["prove"])
    request, ignored = request_from(options)
    terminal = Terminal(os.environ)
    for line in _notes(request, ignored):
        Console(terminal).line(line)
    if steps:
        from samebits.cli.prove import prove_first

        request = prove_first(request, steps, terminal)
    outcome = launch(request, terminal)
    if request.computation.record and not request.output.is_quiet:
        Console(terminal).line(Line("record", record_text(RunFolder(request.output.run_folder))))
    if request.output.trace_steps:
        written = write_trace(RunFolder(request.output.run_folder))
        text = f"{written}: open it in Perfetto" if written is not None else "nothing: no rank called samebits.init()"
        Console(terminal).line(Line("trace", text))
    return outcome.exit_code


def _notes(request: LaunchRequest, ignored: list[str]) -> list[Line]:
    """What is said before the run: words of the script that look like ours; unless it is quiet, what changes nothing here."""
    source = source_of(request.title, request.entry.module is not None) if request.entry.args else None
    notes = [Line("note", sentence) for sentence in strays(request.entry.args, MISPLACED, source)]
    if not request.output.is_quiet:
        notes += branch_lines(request)
        notes += [Line("note", f"without effect on one node: {', '.join(ignored)}")] if ignored else []
        notes += [Line("note", request.placement.crowded)] if request.placement.crowded else []
    return notes
