"""The runs that `verify` and `bench` make: each in its own folder, all from one nursery, so torch is imported once."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from samebits.launcher.choices import OnStall, Recovery, Verbosity
from samebits.launcher.launcher import launch
from samebits.launcher.nursery.handle import NurseryHandle
from samebits.launcher.nursery.kept import FOR_OPTIMIZERS, OURS, torch_variables_of
from samebits.launcher.request import Computation, Device, EntryPoint, LaunchRequest, Outcome, Output, Placement
from samebits.launcher.terminal.terminal import Terminal
from samebits.launcher.trials.workplace import Workplaces
from samebits.machine.held_folder import is_left, make_held, remove_tree
from samebits.machine.processes import ENDING
from samebits.protocol.arithmetic import Arithmetic
from samebits.protocol.branch import Course
from samebits.protocol.layout.mesh import Form, launched, on_ranks
from samebits.protocol.run_folder import RunFolder
from samebits.protocol.saving import Saving

PURPOSES = ("verify", "bench", "replay", "audit")
KEPT = ".kept"
"""The mark of one that is kept; its time is when that was."""
YOUNG_S = 24 * 3600.0
_NAME = "samebits-{}-{}.held"


class RunsFolder:
    """A folder of runs, made and locked as long as this object is open."""

    def __init__(self, purpose: str) -> None:
        self.path = Path(tempfile.gettempdir()).resolve() / _NAME.format(purpose, secrets.token_hex(4))
        self._lock = make_held(self.path)
        for other in (path for one in PURPOSES for path in self.path.parent.glob(_NAME.format(one, "*"))):
            if is_left(other) and not _is_young(other / KEPT):
                remove_tree(other)

    def keep(self) -> str:
        """Keep it for the user to look into. Where it is, in a sentence."""
        (self.path / KEPT).touch(mode=0o600)
        return f"The runs are kept in {self.path} for a day"

    def remove(self) -> None:
        remove_tree(self.path)

    def close(self) -> None:
        """Let go of it: without `keep` the next command removes it."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1


def _is_young(mark: Path) -> bool:
    with suppress(OSError):
        return time.time() - mark.lstat().st_mtime < YOUNG_S
    return False


PRELOADED = (*FOR_OPTIMIZERS, *OURS)
"""What the nursery imports for all ranks of all runs."""
INTERRUPTED = tuple(128 + number for number in ENDING)


@dataclass(frozen=True)
class Program:
    """The script to prove or measure, and how to run it."""

    script: Path | None
    module: str | None
    args: tuple[str, ...]
    threads: int
    device: Device
    threads_given: bool = True
    """Whether the user gave the threads; otherwise the script's own number wins."""
    device_given: bool = False
    """Whether the user named the device; otherwise the script's own wins."""
    form: Form = field(default_factory=Form)
    """Strategy, mesh and schedule, as far as the command line named them."""
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    """Precision and numerics, as far as the command line named them."""
    course: Course = field(default_factory=Course)
    """With which state the script's run begins, and which steps it passes over."""

    @property
    def title(self) -> str:
        return self.module if self.module is not None else str(self.script)


@dataclass(frozen=True)
class Trial:
    label: str
    num_ranks: int
    """As asked for."""
    num_processes: int
    """1 under `dp`, whose number counts replicas."""
    outcome: Outcome
    seconds: float

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.outcome.run_folder)


@dataclass(frozen=True)
class Files:
    """What becomes of the files that the runs write."""

    in_place: bool = False
    """Whether they are written where the script says."""
    note: Callable[[str], None] = field(default=lambda _sentence: None)
    """Called with what cannot be kept apart, before the first run."""


class Trials(AbstractContextManager["Trials"]):
    """Runs of one program, one after the other.

    Args:
        program: what to run.
        watch: called with each run's label when it starts (with None) and when it has ended (with its seconds).
        nursery: one to use and leave open, with the program's threads; None: one of its own.
        purpose: the command that makes the runs; part of the name of their folder.
        files: where the runs write, and what to call with what cannot be kept apart.
        terminal: of somebody who talks to rank 0; None: nothing of a run is shown.
        recovery: what may happen to the ranks; None: a stall ends the run, and nothing else may.
    """

    def __init__(
        self,
        program: Program,
        watch: Callable[[str, float | None], None],
        nursery: NurseryHandle | None = None,
        purpose: str = "verify",
        files: Files | None = None,
        *,
        terminal: Terminal | None = None,
        recovery: Recovery | None = None,
    ) -> None:
        self._program, self._watch, self._terminal = program, watch, terminal
        # These runs have no terminal: a stall would last unseen forever.
        self._recovery = recovery or Recovery(on_stall=OnStall.STOP)
        self._folder = RunsFolder(purpose)
        self.base = self._folder.path
        self._nursery = nursery or NurseryHandle(
            program.threads, PRELOADED, torch_variables_of(program.arithmetic, program.script, program.module)
        )
        self._own = self._nursery if nursery is None else None
        files = files or Files()
        self._places = Workplaces(self._nursery, self.base, files.in_place, files.note)
        self._count = 0

    def run(
        self,
        label: str,
        num_ranks: int,
        lanes: int | None,
        evidence: Mapping[str, Any],
        form: Form | None = None,
        *,
        saving: Saving | None = None,
        num_runs: int = 1,
    ) -> Trial:
        """Make one run, from start to end.

        Args:
            label: for people.
            num_ranks: as a person counts them.
            lanes: None for the script's.
            evidence: what the ranks record.
            form: strategy, mesh and schedule, if not the program's.
            saving: where and when it saves states, if it does.
            num_runs: how many runs, from this one on, see each other's files.

        Raises:
            SystemExit: when a signal to this process stopped the run, with 128 + its number.
        """
        self._watch(label, None)
        self._count += 1
        name = f"{self._count:02d}-{label.replace(', ', '-').replace(' ', '-')}"
        program = self._program
        started, placed = launched(form or on_ranks(program.form, num_ranks), num_ranks)
        place = self._places.begin(num_runs)
        began = time.monotonic()
        request = LaunchRequest(
            EntryPoint(place.script(program.script), program.module, args=program.args, folder=place.folder),
            Placement(
                started,
                program.threads,
                program.device,
                threads_given=program.threads_given,
                device_given=program.device_given,
            ),
            Output(self.base / name, Verbosity.QUIET),
            Computation(lanes, placed, program.arithmetic, evidence=dict(evidence), course=program.course),
            self._recovery,
            saving,
        )
        outcome = launch(request, self._terminal, self._nursery)
        self._places.end()
        outcome = replace(outcome, block=place.with_own_paths(outcome.block))
        if outcome.exit_code in INTERRUPTED and not outcome.block:
            raise SystemExit(outcome.exit_code)
        seconds = time.monotonic() - began
        self._watch(label, seconds)
        return Trial(label, num_ranks, started, outcome, seconds)

    def remove(self) -> None:
        """End what still runs, and remove everything that the runs wrote."""
        # A rank that still ends would write into the folder while it is removed.
        self._close_own()
        self._folder.remove()

    def keep(self) -> str:
        """Keep it for the user; where it is, in a sentence."""
        self._places.remove()
        return self._folder.keep()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_own()
        self._folder.close()

    def _close_own(self) -> None:
        if self._own is not None:
            self._own.close()
