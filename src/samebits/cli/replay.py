"""`samebits replay`: the options."""

from __future__ import annotations

from typing import Any

import click

from samebits.cli.completion import one_of, runs
from samebits.cli.grouped_help import SETTINGS
from samebits.cli.shared_options import accept_in_place
from samebits.protocol.layout.mesh import STRATEGIES

EPILOG = """\b
RUN is a run's name or folder. The script runs again in the run's folder, with its
arguments and lanes, from the newest state before step N (else from the beginning),
and ends behind step N. Nothing of RUN changes; files are written to copies.

\b
Examples:
  samebits replay exp1 --step 1234           do the logged values come again?
  samebits replay exp1 --step 1234 --rows    the samples, loss and gradient of each lane
  samebits replay exp1 --step 1234 --pdb     the debugger, in the script's loop

\b
Exit code: 0; 1 when a logged value differs or step N itself fails; 2 for a mistake in
the options; 125 when step N was not reached; 130 for Ctrl-C."""


@click.command(epilog=EPILOG, context_settings=SETTINGS)
@click.option(
    "--step", type=int, required=True, metavar="N", help="The step, as `metrics.jsonl` and the page count it."
)
@click.option("--rows", is_flag=True, help="Show the samples, the loss and the gradient's norm of each lane.")
@click.option("--pdb", is_flag=True, help="Open the debugger in the script, at the step's first lane.")
@click.option("--anomaly", is_flag=True, help="Let torch name the forward line of a NaN in the step's backward.")
@click.option("-n", "--nproc-per-node", "ranks", type=int, default=None, help="Ranks. [default: 1]")
@click.option(
    "--strategy", default=None, metavar="NAME", shell_complete=one_of(STRATEGIES), help="Another one than the script's."
)
@accept_in_place
@click.option("-q", "--quiet", is_flag=True, help="Say nothing about what is under way.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.argument("run", metavar="RUN", shell_complete=runs)
def replay(**options: Any) -> None:
    """Go back to step N of a run: make it again, with the run's own bits, and look into it."""
    from samebits.cli.start_replay import start

    start(options)
