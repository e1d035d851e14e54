"""`samebits audit`: the options."""

from __future__ import annotations

from typing import Any

import click

from samebits.cli.completion import files, one_of, runs
from samebits.cli.grouped_help import SETTINGS, GroupedHelp
from samebits.cli.shared_options import accept_in_place
from samebits.protocol.layout.mesh import STRATEGIES

EPILOG = """\b
RECORD is a run that was started with --record, or the folder of a published record.
You name the script and its arguments; for a run of your own its run folder does.
Files are written to copies; nothing of the run changes.

\b
Examples:
  samebits audit exp1                                 three segments of a run of yours, on one rank
  samebits audit --all published/ train.py --lr 0.1   everything, with a script that you have read
  samebits audit --no-replay exp1                     the chain and the states' files, in seconds

\b
Exit code: 0 MATCH; 1 NO MATCH; 2 for a mistake in the options, or what is no record;
125 CANNOT TELL (other conditions, or nothing could be made again: this is no pass)."""


@click.command(cls=GroupedHelp, epilog=EPILOG, context_settings={**SETTINGS, "allow_interspersed_args": False})
@click.option(
    "--segments",
    type=int,
    default=None,
    metavar="N",
    help="Make the first segment again, and N-1 others that are drawn. [default: 3]",
)
@click.option("--steps", default=None, metavar="A:B", help="Make these steps again.")
@click.option("--all", "is_all", is_flag=True, help="Make all of it again.")
@click.option("--no-replay", "--no_replay", is_flag=True, help="Only read: the chain, and the files of states.")
@click.option("-n", "--nproc-per-node", "ranks", type=int, default=None, help="Ranks. [default: 1]")
@click.option(
    "--strategy", default=None, metavar="NAME", shell_complete=one_of(STRATEGIES), help="Another one than the script's."
)
@accept_in_place
@click.option("-q", "--quiet", is_flag=True, help="Say nothing about what is under way.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.option("-m", "--module", is_flag=True, help="SCRIPT is a module, as in python -m.")
@click.argument("record", metavar="RECORD", shell_complete=runs)
@click.argument("words", metavar="[SCRIPT [ARGS]...]", nargs=-1, type=click.UNPROCESSED, shell_complete=files)
def audit(**options: Any) -> None:
    """Check what a run has recorded: make parts of it again, and compare every step."""
    from samebits.cli.start_audit import start

    start(options)
