"""`samebits bench`: the options."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import click

from samebits.cli.completion import files, one_of
from samebits.cli.grouped_help import SETTINGS, GroupedHelp
from samebits.cli.script_words import OptionsBeforeScript
from samebits.cli.shared_options import accept_arithmetic_options, accept_in_place
from samebits.protocol.layout.mesh import STRATEGIES

DEFAULT_STEPS = 10
DEFAULT_ROUNDS = 5
EPILOG = """\b
Examples:
  samebits bench train.py --lr 0.1                     one rank, ddp on each number of ranks
  samebits bench --strategies ddp,pipeline train.py    pipelines too
  samebits bench --ranks 2,4 --steps 20 train.py       2 and 4 ranks, 20 steps in each run
  samebits bench --plot speed.png train.py             bars, and one step of every rank

\b
One rank and one process with all cores are always measured. Options go
before SCRIPT; the words behind it are the script's own.

\b
Exit code: 0 when everything was measured; 1 when a configuration failed;
2 for a mistake in the options; 130 for Ctrl-C, after showing what was measured."""


class BenchHelp(GroupedHelp, OptionsBeforeScript):
    """What is measured, and how it is told."""

    groups = MappingProxyType(
        {
            "What is measured": ("ranks", "strategies", "steps", "rounds"),
            "How it runs": (
                *("lanes", "threads", "device", "precision", "numerics", "allow"),
                *("in_place", "module"),
            ),
            "Output": ("plot", "as_json", "quiet"),
        }
    )


@click.command(
    cls=BenchHelp,
    epilog=EPILOG,
    context_settings={**SETTINGS, "allow_interspersed_args": False},
)
@click.option(
    "--ranks", default=None, metavar="N,N,...", help="Numbers of ranks. [default: 1 and the cores, at most 4]"
)
@click.option(
    "--strategies",
    default="ddp",
    metavar="A,B,...",
    shell_complete=one_of(STRATEGIES),
    help=f"Of {', '.join(STRATEGIES)}. [default: single,ddp]",
)
@click.option("--lanes", type=int, default=None, help="Lanes per step. [default: the script's, else the most ranks]")
@click.option("--steps", type=int, default=DEFAULT_STEPS, help=f"Measured steps per run. [default: {DEFAULT_STEPS}]")
@click.option("--rounds", type=int, default=DEFAULT_ROUNDS, help=f"Runs per configuration. [default: {DEFAULT_ROUNDS}]")
@click.option("--threads", type=int, default=None, help="Threads per rank. [default: cores / the most ranks]")
@accept_arithmetic_options
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", help="Where the ranks compute.")
@accept_in_place
@click.option("-q", "--quiet", is_flag=True, help="Say nothing about what is under way.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as one JSON object.")
@click.option("--plot", default=None, metavar="FILE.png", help="Draw bars, and one step of every rank.")
@click.option("-m", "--module", is_flag=True, help="SCRIPT is a module, as in python -m.")
@click.argument("script", shell_complete=files)
@click.argument("args", nargs=-1, type=click.UNPROCESSED, shell_complete=files)
def bench(**options: Any) -> None:
    """Run SCRIPT under several strategies and numbers of ranks, in turn, and compare their speed and memory."""
    from samebits.cli.start_bench import start

    start(options)
