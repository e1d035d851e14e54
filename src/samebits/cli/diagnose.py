"""`samebits diagnose`: what went wrong in a run, or does now."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import click

from samebits.cli.completion import runs
from samebits.cli.grouped_help import SETTINGS
from samebits.machine.visible import hung
from samebits.protocol.run_folder import runs_folder

if TYPE_CHECKING:
    from rich.console import Console

    from samebits.launcher.diagnosis.findings import Finding
    from samebits.launcher.watch.diagnosis import Diagnosis
    from samebits.launcher.watch.places import Run

EPILOG = """\b
RUN is a run's name or folder; without it: the newest run below samebits-runs.
While the run is under way, suspects are looked at for up to 8 s.

\b
Exit code: 0; 1 when the run failed, was left without an end, or is stuck;
2 when RUN is no run."""


@click.command(epilog=EPILOG, context_settings=SETTINGS)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.argument("run", required=False, shell_complete=runs)
def diagnose(run: str | None, as_json: bool) -> None:
    """Say what went wrong in RUN, or does now: who was first, and where each rank was last."""
    from samebits.cli.under_way import screen
    from samebits.launcher.watch.diagnosis import diagnose as look
    from samebits.launcher.watch.places import run_at

    found = run_at(run, runs_folder(os.environ))
    diagnosis = look(found)
    if as_json:
        click.echo(json.dumps({**found.as_json(), **diagnosis.as_json()}))
    else:
        _show(found, diagnosis, screen())
    sys.exit(1 if diagnosis.is_bad else 0)


def _show(run: Run, diagnosis: Diagnosis, console: Console) -> None:
    from samebits.launcher.diagnosis.findings import FINDINGS
    from samebits.launcher.watch.diagnosis import not_in
    from samebits.launcher.watch.table import show_table, table_of
    from samebits.protocol.case import names_of

    for label, text in [
        ("run", run.text),
        ("state", diagnosis.headline),
        *(("lost", text) for text in diagnosis.losses),
        *(
            ("now" if case in diagnosis.now else "found", f"{case.finding}: {case.said}")
            for case in not_in(diagnosis.block, diagnosis.cases)
        ),
    ]:
        console.print(f"{label:<10}{hung(text)}", soft_wrap=True, markup=False)
    if diagnosis.block:
        console.print(f"\n{hung(diagnosis.block)}", soft_wrap=True, markup=False)
    console.print()
    show_table(table_of(diagnosis.view), console)
    for finding in (FINDINGS[name] for name in names_of(diagnosis.cases) if name in FINDINGS):
        _explain(finding, console)


def _explain(finding: Finding, console: Console) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console.print(f"\n{finding.name}: {finding.title}", style="bold", markup=False, highlight=False)
    console.print(Padding(Text(finding.why.replace("`", "")), (0, 0, 0, 2)))
    for number, step in enumerate(finding.what_to_do, 1):
        line = Table.grid(padding=(0, 1))
        line.add_row(f"  {number}.", Text(step.replace("`", "")))
        console.print(line)
