"""`samebits run`: the options, and from a checked request to a launch."""

from __future__ import annotations

import sys
from types import MappingProxyType
from typing import Any

import click

from samebits.cli.completion import files, one_of
from samebits.cli.grouped_help import SETTINGS, GroupedHelp
from samebits.cli.run_command import TakesProjectDefaults
from samebits.cli.script_words import RemembersWords
from samebits.cli.shared_options import (
    accept_arithmetic_options,
    accept_form_options,
)
from samebits.cli.torchrun_options import NODE_OPTIONS, accept_torchrun_options, spellings, variable
from samebits.launcher.choices import OnDamage, OnStall, Recover
from samebits.protocol.backends import BACKENDS
from samebits.protocol.run_folder import RUNS, RUNS_VARIABLE

EPILOG = """\b
Examples:
  samebits run train.py --lr 0.1         one rank per GPU, or per core (at most 4)
  samebits run -n 4 --lanes 8 train.py   8 lanes: the bits of 1, 2, 3, ... 8 ranks
  samebits run -n 2 -m package.train     a module
  samebits run --name exp1 --save-every 500steps train.py   again: resumes where it was
  samebits run --recover off train.py    ends when a rank is killed

\b
Everything after SCRIPT belongs to the script. torchrun's options are accepted
in both spellings. Without --lanes and lanes= there are 4, or one per rank.
A script whose argparse declares --local_rank or --local-rank gets it, as from
torch.distributed.launch (--use-env: never; --no-use-env: always).

\b
Exit code: 0; the script's own; 1 after an exception; 2 for a mistake in the
options or in the use of samebits; 128 + n after signal n (130 for Ctrl-C,
143 for SIGTERM, 138 for SIGUSR1): with --save-every the same command resumes."""


START_METHODS = ("fork", "spawn", "forkserver")
"""Torch's names; what forks here has imported and does nothing else, so it is a fork server."""


class RunHelp(TakesProjectDefaults, GroupedHelp, RemembersWords):
    """The twelve options that most runs need, and the groups of all."""

    most_used = (
        *("ranks", "device", "lanes", "threads", "strategy", "name"),
        *("save_every", "recover", "track", "log_dir", "verbose", "module"),
    )
    groups = MappingProxyType(
        {
            "Ranks": ("ranks", "nproc_per_node", "device", "threads", "start_method", "backend", "module"),
            "Computation": (
                *("lanes", "strategy", "mesh", "schedule", "precision", "numerics", "allow"),
                "check_every",
            ),
            "States": (
                "name",
                "save_every",
                "keep",
                "states",
                "grace",
                "resume_nonfinite",
                "parent",
                "fresh",
                "skip_steps",
            ),
            "Losses": ("recover", "shrink", "max_restarts", "on_damage", "on_stall", "stall_after"),
            "Nodes": ("nnodes", *(option[2:].replace("-", "_") for option in NODE_OPTIONS), "key_file"),
            "Proof": ("prove", "record", "record_states"),
            "Output": ("log_dir", "track", "trace", "full_traceback", "quiet", "verbose"),
        }
    )


@click.command(
    cls=RunHelp,
    epilog=EPILOG,
    context_settings={**SETTINGS, "allow_interspersed_args": False},
)
@click.option("-n", "ranks", metavar="N|auto", default=None, help="Number of ranks. [default: auto]")
@click.option(
    "--nproc-per-node",
    "--nproc_per_node",
    "nproc_per_node",
    metavar="N|auto|cpu|gpu",
    default=None,
    help="The same, as torchrun calls it.",
)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", help="Where the ranks compute.")
@click.option("--lanes", type=int, default=None, help="Lanes per step: same lanes and threads, same bits.")
@accept_form_options
@accept_arithmetic_options
@click.option(
    "--backend",
    default=None,
    metavar="|".join(BACKENDS),
    shell_complete=one_of(BACKENDS),
    help="Backend for torch.distributed. [default: the script's]",
)
@click.option("--threads", type=int, default=None, help="Threads per rank. [default: cores / lanes]")
@click.option("--name", default=None, help="Name of the run folder. [default: time and script]")
@click.option(
    "--save-every", "--save_every", default=None, metavar="500steps|10min|epoch", help="Save the state by itself."
)
@click.option(
    "--grace",
    type=float,
    default=30.0,
    metavar="SECONDS",
    show_default=True,
    help="How long a signal waits for such a state.",
)
@click.option("--keep", type=int, default=None, help="States that stay on the disk. [default: 3]")
@click.option(
    "--states",
    default=None,
    metavar="URL",
    help="Copy states to URL/NAME too (s3://bucket/runs), and resume from there.",
)
@click.option(
    "--resume-nonfinite",
    "--resume_nonfinite",
    is_flag=True,
    help="Resume from the newest state even if its weights are not finite.",
)
@click.option(
    "--from",
    "parent",
    default=None,
    metavar="RUN@STEP",
    help="Begin with a state of another run: a branch, with --name. [default step: the newest]",
)
@click.option(
    "--fresh",
    default=None,
    metavar="NAMES",
    help="In a branch, take the script's values of these options: lr,weight_decay.",
)
@click.option(
    "--skip-steps", "--skip_steps", default=None, metavar="A:B", help="Pass over the samples of these steps: 1234:1236."
)
@click.option(
    "--recover",
    type=click.Choice([choice.value for choice in Recover]),
    default=None,
    help="After a loss all ranks start again: from the newest state (auto), from one that lacks nothing (exact), or not (off). [default: auto]",
)
@click.option("--shrink", is_flag=True, help="Start again with one rank less.")
@click.option(
    "--on-damage",
    "--on_damage",
    type=click.Choice([choice.value for choice in OnDamage]),
    default=OnDamage.RESTART.value,
    help="When ranks no longer hold the same bits: all start again, or stop.",
)
@click.option(
    "--on-stall",
    "--on_stall",
    type=click.Choice([choice.value for choice in OnStall]),
    default=OnStall.REPORT.value,
    help="When a rank that others wait for does not move: say so, replace it, or stop.",
)
@click.option(
    "--stall-after",
    "--stall_after",
    type=float,
    default=None,
    metavar="SECONDS",
    help="How long a rank may be waited for. [default: by what it does, at least 5]",
)
@click.option(
    "--check-every",
    "--check_every",
    default=None,
    metavar="50steps|off",
    help="How often ranks compare their bits. [default: by size]",
)
@click.option(
    *spellings("--max-restarts"),
    type=int,
    envvar=variable("--max-restarts"),
    default=None,
    help="How often all ranks may start again. [default: 3; 0 without samebits.init]",
)
@click.option("--snapshots", default=None, hidden=True)  # for tests: how often is measured
@click.option(
    "--log-dir", "--log_dir", default=None, help=f"Folder of all run folders. [default: {RUNS_VARIABLE}, else {RUNS}]"
)
@click.option(
    "--track",
    multiple=True,
    metavar="TRACKER",
    shell_complete=one_of(("tensorboard", "wandb")),
    help="tensorboard or wandb: give it every value of run.log, once, through kills and resumes.",
)
@click.option(
    "--prove",
    metavar="STEPS",
    default=None,
    help="Before the run, prove its bits by short runs on 1 and 2 ranks: 3steps. [default: no]",
)
@click.option(
    "--record", is_flag=True, help="Write down what each step was given and came to, so that anybody can check it."
)
@click.option(
    "--record-states",
    "--record_states",
    type=int,
    default=None,
    metavar="N",
    help="With --record: how many older states stay besides --keep, spread over the run. [default: 8]",
)
@click.option("--trace", metavar="STEPS", default=None, help="Record the first steps for Perfetto: 20steps.")
@click.option(
    "--full-traceback", "--full_traceback", is_flag=True, help="Show the frames inside torch and samebits too."
)
@click.option(
    *spellings("--start-method"),
    type=click.Choice(START_METHODS),
    metavar="fork|spawn",
    envvar=variable("--start-method"),
    default="fork",
    help="spawn: start each rank as a new interpreter, not as a fork.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print only failures.")
@click.option("-v", "--verbose", is_flag=True, help="Also print each rank's process and log.")
@click.option("-m", "--module", is_flag=True, help="SCRIPT is a module, as in python -m.")
@click.option(
    "--nnodes",
    default=None,
    metavar="N|MIN:MAX",
    help="Number of nodes; between two numbers they come and go. [default: 1]",
)
@click.option(
    "--key-file", "--key_file", default=None, metavar="FILE", help="With several nodes: their common secret, mode 0600."
)
@click.option("--use-env/--no-use-env", "--use_env/--no_use_env", "use_env", default=None, hidden=True)
@accept_torchrun_options
@click.argument("script", shell_complete=files)
@click.argument("args", nargs=-1, type=click.UNPROCESSED, shell_complete=files)
def run(**options: Any) -> int:
    """Start SCRIPT on several ranks of this machine, show their progress, and stop all ranks when one fails."""
    from samebits.cli.start_run import start

    sys.exit(start(options))
