"""`samebits record`: its commands and their options."""

from __future__ import annotations

from collections.abc import Callable

import click

from samebits.cli.completion import runs
from samebits.cli.grouped_help import SETTINGS

RECORD = "\b\nRECORD is a run that was started with --record (its name or folder), the folder of a\npublished record, or a record.jsonl."
EPILOG = """\b
Examples:
  samebits record show exp1                     what exp1 has recorded
  samebits record show exp1 --step 1234         one step: its samples, loss, rates
  samebits record diff exp1 exp2                where do the two part?
  samebits record export exp1 published         a folder that can be given away

\b
A run records with `samebits run --record`. These commands only read; `samebits
audit` makes a run's steps again and compares.

\b
Exit code: 0; 1 when a chain breaks or a step came again otherwise (show), or two differ
(diff); 2 for a mistake, for a record that cannot be read, or for what looks like a
secret (export)."""


@click.group(epilog=EPILOG, context_settings=SETTINGS)
def record() -> None:
    """Look at what runs recorded: show, compare, publish."""


def _command(name: str, *lines: str) -> Callable[[Callable[..., None]], click.Command]:
    """A command with --json, and paragraphs below its help."""

    def made(function: Callable[..., None]) -> click.Command:
        with_json = click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")(function)
        return record.command(name, context_settings=SETTINGS, epilog="\n\n\b\n".join(lines))(with_json)

    return made


@_command(
    "show",
    RECORD,
    "Exit code: 0; 1 when its chain breaks, or a step came again otherwise; 2 when\nit cannot be read.",
)
@click.option("--step", type=int, default=None, metavar="N", help="Show what stands of one step.")
@click.argument("where", metavar="RECORD", shell_complete=runs)
def show(where: str, step: int | None, as_json: bool) -> None:
    """Show a record: conditions, steps, states, the end, whether its chain holds."""
    from samebits.cli.start_record import show_one

    show_one(where, step, as_json)


@_command(
    "diff",
    RECORD,
    "Conditions (versions, CPU, commit) that differ are shown, but make no difference.",
    "Exit code: 0 when both have the same steps and the same end; 1 when not; 2 when one\ncannot be read.",
)
@click.argument("one", metavar="RECORD", shell_complete=runs)
@click.argument("other", metavar="RECORD", shell_complete=runs)
def diff(one: str, other: str, as_json: bool) -> None:
    """Compare two records: the first step that differs, and what differs in it."""
    from samebits.cli.start_record import compare

    compare(one, other, as_json)


@_command(
    "export",
    RECORD,
    "FOLDER must not exist. It gets the record, SHA256SUMS to be checked and signed, a\nREADME.txt, and no absolute path and no name of this machine and user.",
    "Exit code: 0; 1 when FOLDER cannot be written; 2 for a mistake, or for what looks like a\nsecret.",
)
@click.option(
    "--states",
    metavar="none|all|N",
    default="none",
    help="Copy the files of states too: all, or N spread over the run. [default: none]",
)
@click.option("--redact", is_flag=True, help="Leave out the script's arguments.")
@click.argument("where", metavar="RECORD", shell_complete=runs)
@click.argument("folder")
def export(where: str, folder: str, states: str, redact: bool, as_json: bool) -> None:
    """Write a folder with a record that can be given away."""
    from samebits.cli.start_record import publish

    publish(where, folder, states, redact, as_json)
