"""`samebits verify`: the options."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import click

from samebits.cli.completion import files
from samebits.cli.grouped_help import SETTINGS, GroupedHelp
from samebits.cli.script_words import NumberOrNone, OptionsBeforeScript
from samebits.cli.shared_options import (
    VERIFIED_RANKS,
    VERIFIED_STEPS,
    accept_arithmetic_options,
    accept_form_options,
    accept_in_place,
)
from samebits.verify.plain import ACCEPTABLE

EPILOG = """\b
Examples:
  samebits verify train.py --lr 0.1                  20 steps on 1, 2 and 4 ranks
  samebits verify --ranks 1,2,3 --steps 5 train.py   5 steps on 1, 2 and 3 ranks
  samebits verify --json -m package.train            a module; the result as JSON
  samebits verify --ranks 1 --save bits.json train.py      the bits of this commit
  samebits verify --ranks 1 --against bits.json train.py   are they still the same?
  samebits verify --interrupt 7 train.py             stopped after step 7, does it go on?
  samebits verify --where train.py                   which operator differs, in which lane?
  samebits verify --save ops.json --where 37 plain.py      without our calls: step 37
  samebits verify --against-commit main plain.py     this tree and another commit

\b
Options go before SCRIPT; the words behind it are the script's own.

\b
Exit code: 0 when every bit is the same and the lanes give the gradient of the
whole batch; 1 when not, or when a run fails; 2 for a mistake in the options or
in the use of samebits, or for a file that cannot be trusted; 125 when nothing
could be compared: with --against, which `git bisect run` skips, and of a script
that never calls samebits.init(); 130 for Ctrl-C."""


class VerifyHelp(GroupedHelp, OptionsBeforeScript):
    """What is compared, with what, and how it is told."""

    groups = MappingProxyType(
        {
            "What is run": (
                *("ranks", "steps", "lanes", "threads", "device", "strategy", "mesh", "schedule"),
                *("precision", "numerics", "allow", "module"),
            ),
            "Compared with": ("save", "against", "against_commit", "python", "interrupt"),
            "Without samebits.init": ("repeat", "num_processes", "timeout", "in_place"),
            "Findings": ("where", "accept"),
            "Output": ("as_json", "summary", "quiet", "verbose"),
        }
    )


@click.command(
    cls=VerifyHelp,
    epilog=EPILOG,
    context_settings={**SETTINGS, "allow_interspersed_args": False},
)
@click.option("--ranks", default=None, metavar="N,N,...", help=f"Numbers of ranks. [default: {VERIFIED_RANKS}]")
@click.option(
    "--lanes", type=int, default=None, help="Lanes per step. [default: the script's, else 4 or the most ranks]"
)
@accept_form_options
@accept_arithmetic_options
@click.option("--steps", type=int, default=None, help=f"Steps to compare. [default: {VERIFIED_STEPS}, or the file's]")
@click.option("--save", default=None, metavar="FILE.json", help="Write the bits, if all ranks have the same.")
@click.option("--against", default=None, metavar="FILE.json", help="Compare with bits written by --save.")
@click.option("--repeat", type=int, default=None, metavar="N", help="Compare N runs of the script with each other.")
@click.option(
    "--against-commit", default=None, metavar="REV", help="Compare runs of this tree and of another commit's."
)
@click.option("--python", default=None, metavar="PATH,PATH", help="Compare runs in these environments.")
@click.option(
    "--where",
    cls=NumberOrNone,
    default=None,
    metavar="[STEP]",
    help="Name the first operator that differs, and the script's line. With a number, --save writes that step's operators.",
)
@click.option("--timeout", type=float, default=None, metavar="SECONDS", help="Of each of these runs. [default: 600]")
@click.option(
    "-n",
    "--nproc-per-node",
    "num_processes",
    type=int,
    default=None,
    help="Processes of each of these runs, as torchrun starts them. [default: as python starts it]",
)
@click.option(
    "--interrupt",
    type=int,
    default=None,
    metavar="K",
    help="Stop after step K, resume from the state, compare with a run without a stop. --ranks: one number, or two.",
)
@click.option(
    "--accept",
    multiple=True,
    metavar="NAME",
    help=f"Accept a finding: {', '.join(f'{n}, {t}' for n, t in ACCEPTABLE.items())}.",
)
@click.option("--threads", type=int, default=None, help="Threads per rank. [default: cores / the most ranks]")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", help="Where the ranks compute.")
@accept_in_place
@click.option("--summary", default=None, metavar="FILE", help="Append the result as Markdown, for a CI's step summary.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing about what is under way.")
@click.option("-v", "--verbose", is_flag=True, help="Show the table of all items, and all that is not covered.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
@click.option("-m", "--module", is_flag=True, help="SCRIPT is a module, as in python -m.")
@click.argument("script", shell_complete=files)
@click.argument("args", nargs=-1, type=click.UNPROCESSED, shell_complete=files)
def verify(**options: Any) -> None:
    """Run SCRIPT on several numbers of ranks, and prove that every bit is the same; else show where they differ."""
    from samebits.cli.start_verify import start

    start(options)
