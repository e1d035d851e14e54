"""`samebits report`: a run, or several compared, as one HTML file."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from samebits.cli.completion import runs as complete_runs
from samebits.cli.grouped_help import SETTINGS
from samebits.errors import UsageError
from samebits.protocol.run_folder import runs_folder, write_private

if TYPE_CHECKING:
    from samebits.show.run_data import RunData

MOST_RUNS = 20
EPILOG = """\b
RUN is a run's name or folder; without one: the newest run below samebits-runs.
Several runs are compared with the first: curves over each other, the first step
at which a metric differs, and their speed. The file loads nothing from anywhere.

\b
Exit code: 0; 1 when a run is slower than --fail-slower allows; 2 when RUN is no run."""


@click.command(epilog=EPILOG, context_settings=SETTINGS)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), default="report.html", show_default=True, help="The file."
)
@click.option("--fail-slower", metavar="SHARE", help="Exit code 1 when a run is slower than the first by more: 10%.")
@click.argument("runs", metavar="[RUN]...", nargs=-1, shell_complete=complete_runs)
def report(output: str, fail_slower: str | None, runs: tuple[str, ...]) -> None:
    """Write what there is to see of a run into one HTML file; of several, how they differ."""
    from samebits.launcher.watch.places import run_at
    from samebits.show.report import comparison_data, page
    from samebits.show.run_data import read_run_data
    from samebits.show.story import story_of

    most = _share(fail_slower) if fail_slower is not None else None
    if most is not None and len(runs) < 2:
        raise UsageError("--fail-slower compares runs, but there is only one.", "Name the run to compare with first.")
    if len(runs) > MOST_RUNS:
        raise UsageError(f"{len(runs)} runs are too many for one page.", f"Name {MOST_RUNS} at most.")
    several = [read_run_data(run_at(word, runs_folder(os.environ)).folder) for word in runs or (None,)]
    data = (
        {"mode": "report", "story": story_of(several[0])}
        if len(several) == 1
        else comparison_data(several, most_slower=most)
    )
    _write(Path(output), page(data))
    click.echo(output)
    if len(several) > 1:
        _tell(several, most)


def _write(path: Path, text: str) -> None:
    try:
        write_private(path, text)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.", "Name another file with -o.") from None


def _tell(several: list[RunData], most: float | None) -> None:
    from samebits.show.report import compare, slower

    compared = [compare(several[0], other) for other in several[1:]]
    for one in compared:
        speed = f"{one.ratio:.2f} times the speed" if one.ratio == one.ratio else "speed not known"
        difference = f"first other value: {one.difference}" if one.difference else "no metric differs"
        click.echo(f"{one.name}: {speed} of {several[0].name}; {difference}")
    if most is not None and slower(compared, most):
        sys.exit(1)


def _share(text: str) -> float:
    """`10%` or `0.1`."""
    number, percent = text.removesuffix("%"), text.endswith("%")
    try:
        share = float(number) / (100 if percent else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise UsageError(f"--fail-slower {text} is not a share.", "Write 10% or 0.1.")
    return share
