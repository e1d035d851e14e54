"""A job script for SLURM that a person can read: what is asked for, one `srun lockstep run`, and how it goes on."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.errors import UsageError
from lockstep.visible import visible

STOPPED = 138
"""The exit code of a run that SIGUSR1 stopped with a state."""
_WORD = re.compile(r"[\w.,:@/+%=\[\]-]+")
_TIME = re.compile(r"[0-9]+|[0-9]+:[0-9]{1,2}(:[0-9]{1,2})?|[0-9]+-[0-9]{1,2}(:[0-9]{1,2}){0,2}")
"""Minutes, minutes:seconds, hours:minutes:seconds, days-hours, and so on, as SLURM reads them."""


@dataclass(frozen=True)
class JobScript:
    """One job."""

    name: str
    nodes: int
    command: Sequence[str]
    """`lockstep run` and its options, without the script."""
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
        """The file."""
        return "\n".join([*self._head(), "", *self._body(), ""])

    def _head(self) -> list[str]:
        options = [
            f"job-name={self.name}",
            f"nodes={self.nodes}",
            "ntasks-per-node=1" + "              # one `lockstep run` per node; it starts the ranks there",
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
            f"# {STOPPED}: stopped by USR1, with a state. The same job goes on from it when its turn comes again.",
            f'if [ "$code" -eq {STOPPED} ]; then',
            '  scontrol requeue "$SLURM_JOB_ID"',
            "fi",
            'exit "$code"',
        ]
