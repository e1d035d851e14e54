"""`samebits sbatch`: write a job script for SLURM around one `samebits run`, and submit it only with --submit."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from samebits.cli.run import run
from samebits.errors import UsageError
from samebits.machine.visible import visible
from samebits.protocol.saving import check_name

EPILOG = """\b
Examples:
  samebits sbatch --nodes 2 -n 4 --time 1:00:00 train.py --lr 0.1
  samebits sbatch --nodes 4 --partition gpu --more gpus-per-node=8 --submit train.py

\b
Options of `samebits run` go before SCRIPT too. Without --save-every a state is
saved every 10 minutes; without --name the run is called after its job. Before
the job's time is over it is saved and put back into the queue; it then goes on.

\b
Exit code: 0; 2 for a mistake in the options; with --submit, sbatch's own."""
SAVE_EVERY = "10min"
MARK = "samebits run"
NOT_HERE = (
    "nnodes",
    "node_rank",
    "rdzv_endpoint",
    "rdzv_id",
    "rdzv_backend",
    "rdzv_conf",
    "master_addr",
    "master_port",
)
"""Options of `samebits run` that SLURM answers."""


@click.command(
    epilog=EPILOG,
    context_settings={
        "allow_interspersed_args": False,
        "help_option_names": ["-h", "--help"],
        "max_content_width": 110,
    },
)
@click.option("--nodes", type=int, default=1, show_default=True, help="How many nodes.")
@click.option("--ntasks-per-node", "ntasks", metavar="N", default=None, help="Ranks on each node; the same as -n.")
@click.option(
    "--cores", type=int, default=None, help="Cores on each node. [default: ranks x threads; else whole nodes]"
)
@click.option("--time", default=None, metavar="1:30:00", help="The job's time.")
@click.option("--partition", default=None, help="Where it waits.")
@click.option("--more", multiple=True, metavar="account=abc", help="Another option of sbatch; may be repeated.")
@click.option("--signal", default="USR1@90", show_default=True, help="How many seconds before the end it is stopped.")
@click.option("--requeue/--no-requeue", default=True, show_default=True, help="Go on in the queue after that.")
@click.option("-o", "output", default=None, metavar="FILE", help="Where the job script goes. [default: SCRIPT.sbatch]")
@click.option("--submit", is_flag=True, help="Submit it.")
@click.pass_context
def sbatch(context: click.Context, /, **options: Any) -> int:
    """Write a job script that runs SCRIPT under SLURM, saves its state in time, and resumes."""
    from samebits.cli.program import check_program

    check_program(options["script"], options["module"], "sbatch")
    _check(context, options)
    title = _title(options)
    text = JobScript(
        name=title,
        nodes=options["nodes"],
        command=_command(context, options),
        is_named_by_job=not _is_given(context, "name"),
        program=[*(["-m"] if options["module"] else []), options["script"], *options["args"]],
        cores=options["cores"] or _cores(options),
        time=options["time"],
        partition=options["partition"],
        more=options["more"],
        stop_s=_stop_s(options["signal"]),
        requeues=options["requeue"],
    ).text()
    path = Path(options["output"] or f"{title}.sbatch")
    if options["submit"] and shutil.which("sbatch") is None:
        raise UsageError(f"There is no sbatch here to submit {visible(path)}.", "Use `sbatch` on a login node.")
    _write(path, text)
    if options["submit"]:
        return subprocess.run(["sbatch", str(path)], check=False).returncode
    click.echo(f"wrote {visible(path)}; submit it with: sbatch {visible(path)}")
    return 0


def _of_run(parameter: click.Parameter) -> click.Parameter:
    """A parameter of `samebits run`, which `--help` shows there."""
    mine = copy(parameter)
    if isinstance(mine, click.Option):
        mine.hidden = True
    return mine


sbatch.params += [_of_run(one) for one in run.params if one.name not in NOT_HERE]


def _check(context: click.Context, options: dict[str, Any]) -> None:
    """Raise `UsageError` for options that contradict each other, and set the number of ranks in one place."""
    given = [name for name in ("ranks", "nproc_per_node", "ntasks") if _is_given(context, name)]
    if len(given) > 1:
        raise UsageError("-n, --nproc-per-node and --ntasks-per-node are the same option.", "Give one of them.")
    options["per_node"] = options[given[0]] if given else None
    if options["cores"] is not None and options["cores"] < 1:
        raise UsageError(f"--cores must be at least 1, but is {options['cores']}.", "Leave it out for whole nodes.")
    _check_run(context, options)


def _check_run(context: click.Context, options: dict[str, Any]) -> None:
    """Raise `UsageError` for what `samebits run` would refuse only when the job's turn has come."""
    from samebits.cli.launch_request import RunOptions, check_options

    said = {one.name: options[one.name] for one in fields(RunOptions) if options.get(one.name) is not None}
    said |= {"ranks": options["per_node"]}
    if not _is_given(context, "save_every"):
        said["save_every"] = SAVE_EVERY
    if not _is_given(context, "name"):
        said["name"] = _title(options)
    check_options(RunOptions(**said))


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _title(options: dict[str, Any]) -> str:
    """The job's name: the run's, else the script's, without what cannot be in a file's name."""
    if options["name"] is not None:
        check_name(options["name"])
        return str(options["name"])
    last = options["script"].rpartition(".")[2] if options["module"] else Path(options["script"]).stem
    return re.sub(r"[^\w.-]", "-", last) or "job"


def _command(context: click.Context, options: dict[str, Any]) -> list[str]:
    """`samebits run` with the options that were given, and those that a job needs."""
    own = shutil.which("samebits")
    is_found = own is not None and Path(own).parent == Path(sys.executable).parent
    words = ["samebits", "run"] if is_found else [sys.executable, "-m", "samebits", "run"]
    if options["per_node"] is not None:
        words += ["-n", str(options["per_node"])]
    if not _is_given(context, "save_every"):
        words += ["--save-every", SAVE_EVERY]
    if not _is_given(context, "grace"):
        stop_s = _stop_s(options["signal"])
        words += ["--grace", str(max(stop_s - 30, stop_s // 2))]
    for parameter in run.params:
        name = str(parameter.name)
        if (
            isinstance(parameter, click.Option)
            and _is_given(context, name)
            and name not in ("ranks", "nproc_per_node", "module")
        ):
            words += _said(parameter, options[name])
    return words


def _said(option: click.Option, value: Any) -> list[str]:
    """An option as one would type it."""
    word = max(option.opts, key=len)
    if option.multiple:
        return [said for one in value for said in (word, str(one))]
    if not option.is_flag:
        return [word, str(value)]
    return [word if value else max(option.secondary_opts, key=len)]


def _cores(options: dict[str, Any]) -> int | None:
    ranks = options["per_node"]
    return int(ranks) * (options["threads"] or 1) if ranks is not None and str(ranks).isdecimal() else None


def _stop_s(signal: str) -> int:
    match = re.fullmatch("USR1@([0-9]{1,5})", signal)
    if match is None:
        raise UsageError(
            f"--signal must be USR1@SECONDS, but is {visible(signal)}.",
            "Write USR1@90: the launchers get it, save a state and stop.",
        )
    return int(match[1])


def _write(path: Path, text: str) -> None:
    """Write the file; one that is no job script of ours is left alone."""
    another = "Name another one with -o FILE."
    try:
        if path.exists() and not (path.is_file() and MARK in path.read_text(errors="replace")):
            raise UsageError(f"{visible(path)} exists, and samebits did not write it.", another)
        path.write_text(text)
    except OSError as error:
        raise UsageError(f"{visible(path)} cannot be written: {error.strerror}.", another) from None


# The job script, meant to be read: what is requested, one `srun samebits run`, and how it resumes


STOPPED = 138
"""The exit code of a run that SIGUSR1 stopped with a state."""
_WORD = re.compile(r"[\w.,:@/+%=\[\]-]+")
_TIME = re.compile(r"[0-9]+|[0-9]+:[0-9]{1,2}(:[0-9]{1,2})?|[0-9]+-[0-9]{1,2}(:[0-9]{1,2}){0,2}")
"""Minutes, minutes:seconds, hours:minutes:seconds, days-hours, and so on, as SLURM reads them."""


@dataclass(frozen=True)
class JobScript:
    name: str
    nodes: int
    command: Sequence[str]
    """`samebits run` and its options, without the script."""
    is_named_by_job: bool
    """Whether the run is called after the job and its number."""
    program: Sequence[str]
    """The script and its arguments."""
    cores: int | None = None
    """For each node's ranks together; None: the whole node."""
    time: str | None = None
    partition: str | None = None
    more: Sequence[str] = ()
    """Other options of sbatch."""
    stop_s: int = 90
    """How long before the end of its time the job is stopped."""
    requeues: bool = True

    def __post_init__(self) -> None:
        """Raise `UsageError` for what SLURM would not understand, or what would end the line it stands on."""
        if self.nodes < 1:
            raise UsageError(f"--nodes must be at least 1, but is {self.nodes}.", "Give a number of nodes.")
        if self.time is not None and not _TIME.fullmatch(self.time):
            raise UsageError(f"--time {visible(self.time)} cannot be read.", "Write 90, 1:30:00 or 2-12:00:00.")
        for word in (self.partition, *self.more):
            if word is not None and not _WORD.fullmatch(word):
                raise UsageError(f"{visible(word)!r} cannot stand in a job script.", "Leave out blanks and quotes.")

    def text(self) -> str:
        return "\n".join([*self._head(), "", *self._body(), ""])

    def _head(self) -> list[str]:
        options = [
            f"job-name={self.name}",
            f"nodes={self.nodes}",
            "ntasks-per-node=1" + "              # one `samebits run` per node; it starts the ranks",
            f"cpus-per-task={self.cores}" if self.cores else "exclusive",
            f"time={self.time}" if self.time else "",
            f"partition={self.partition}" if self.partition else "",
            *(word.removeprefix("--") for word in self.more),
            f"output={self.name}-%j.out",
            f"signal=USR1@{self.stop_s}" + f"              # {self.stop_s} s before the end: save a state and stop",
            "requeue" if self.requeues else "no-requeue",
            "open-mode=append" if self.requeues else "",
        ]
        return ["#!/bin/bash", *(f"#SBATCH --{option}" for option in options if option)]

    def _name(self) -> str:
        return f' --name {shlex.quote(self.name)}-"$SLURM_JOB_ID"' if self.is_named_by_job else ""

    def _body(self) -> list[str]:
        cores = "$SLURM_CPUS_PER_TASK" if self.cores else "$SLURM_CPUS_ON_NODE"
        lines = [
            f'srun --ntasks-per-node=1 --cpus-per-task="{cores}" \\',
            f"  {shlex.join(self.command)}{self._name()} \\",
            f"  {shlex.join(self.program)}",
        ]
        if not self.requeues:
            return lines
        return [
            *lines,
            "code=$?",
            "",
            f"# {STOPPED}: stopped by USR1, with a state. The same job resumes from it when its turn comes.",
            f'if [ "$code" -eq {STOPPED} ]; then',
            '  scontrol requeue "$SLURM_JOB_ID"',
            "fi",
            'exit "$code"',
        ]
