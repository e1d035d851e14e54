"""One run of a script as a person starts it: `python train.py`, or `torchrun` with several processes.

Its files go to a private view, it reads nothing from the terminal, trackers stay offline, and nothing of it is left behind.

Runs in: `samebits verify`; a forked process of it stays above each run.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from samebits.launcher.trials.workplace import Workplaces
from samebits.machine.leftovers import descendants, kill
from samebits.machine.private_view import PrivateView, ViewReport, make_view
from samebits.machine.processes import ENDING, adopt_orphans, die_with_parent, set_parent_death_signal
from samebits.verify.repeat.terminal import nothing_to_read

SITE = Path(__file__).resolve().parents[2] / "witness" / "site"
OFFLINE = {
    "WANDB_MODE": "offline",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "MLFLOW_TRACKING_URI": "file:./mlruns",
}
"""What keeps trackers from their servers, by their own variables."""
GRACE_S = 5.0
"""Between the signal that asks a run to end and the one that ends it."""
LOOK_S = 0.05
LAST_WORDS = 6


@dataclass(frozen=True)
class Command:
    """What is run."""

    script: Path | None
    module: str | None
    args: tuple[str, ...]
    python: str
    """The interpreter."""
    num_processes: int | None = None
    """None: one process, as `python` starts it; else as many as `torchrun` is to start."""

    @property
    def title(self) -> str:
        return self.module if self.module is not None else str(self.script)

    @property
    def name(self) -> str:
        """The same on any machine."""
        return self.module if self.module is not None else Path(self.title).name

    def words(self, script: Path | None) -> list[str]:
        """The command line."""
        start = [self.python]
        if self.num_processes is not None:
            start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.num_processes)]
        program = ["-m", self.module] if self.module is not None else [str(script)]
        return [*start, *program, *self.args]


@dataclass(frozen=True)
class Ended:
    """How a run ended."""

    label: str
    folder: Path
    """Of its evidence and its output."""
    code: int
    """Its exit code; -N where signal N ended it."""
    seconds: float
    is_late: bool = False
    """Whether its time was over."""

    @property
    def last_words(self) -> str:
        """The last lines that it printed."""
        with suppress(OSError):
            lines = (self.folder / "output.log").read_text(errors="replace").rstrip().splitlines()
            return "".join(f"\n  | {line}" for line in lines[-LAST_WORDS:])
        return ""


@dataclass
class Views:
    """Makes private views in this process, as a nursery does for ranks."""

    current: PrivateView | None = field(default=None, init=False)

    def make_view(self, folder: Path, _num_runs: int = 1) -> ViewReport:
        """A view of the next run, which is one process with those below it; what it writes goes to `folder`."""
        self.close()
        report, self.current = make_view(folder)
        return report

    def close(self) -> None:
        """Let go of it."""
        if self.current is not None:
            self.current.close()
        self.current = None


class Runs:
    """Runs of a script, one after the other.

    Args:
        base: a folder of its own.
        watch: called with each run's label when it begins (with None) and when it has ended (with its seconds).
        note: called with what cannot be kept apart.
        in_place: whether runs write where the script says.
        limit_s: after which a run is ended.
    """

    def __init__(
        self,
        base: Path,
        watch: Callable[[str, float | None], None],
        note: Callable[[str], None],
        *,
        in_place: bool,
        limit_s: float,
    ) -> None:
        self._base, self._watch, self._limit_s = base, watch, limit_s
        self._views = Views()
        self._places = Workplaces(self._views, base, in_place, note)
        self._count = 0
        # What a run leaves behind becomes a child of this process, which ends it.
        adopt_orphans()

    def run(
        self,
        label: str,
        command: Command,
        wanted: Mapping[str, Any],
        variables: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> Ended:
        """Make one run, from start to end.

        Args:
            label: for people.
            command: what to run.
            wanted: what the witness records.
            variables: of its environment, besides this process's.
            folder: its working directory; None: that of this process.
        """
        self._watch(label, None)
        self._count += 1
        own = self._base / f"{self._count:02d}"
        own.mkdir(mode=0o700)
        place = self._places.begin()
        environment = {
            **os.environ,
            **OFFLINE,
            **(variables or {}),
            "SAMEBITS_WITNESS": json.dumps({**wanted, "folder": str(own)}),
            "PYTHONPATH": os.pathsep.join([str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        script = command.script if folder is not None else place.script(command.script)
        here = str(folder or place.folder or Path.cwd())
        view, parent = self._views.current, os.getpid()

        def enter() -> None:
            # Whoever enters a view begins at its root.
            if view is not None:
                view.join()
                os.chdir(here)
            # Entering a view changes the rights of a process, and the kernel forgets then who is told of a parent's end.
            _stay_above(parent)

        began = time.monotonic()
        try:
            with (own / "output.log").open("wb") as log, nothing_to_read() as read:
                code, is_late = _run(
                    command.words(script),
                    environment,
                    (here, enter),
                    (read, log.fileno()),
                    self._limit_s,
                )
        finally:
            self._views.close()
            self._places.end()
        seconds = time.monotonic() - began
        self._watch(label, seconds)
        return Ended(label, own, code, seconds, is_late)


def _run(
    words: Sequence[str],
    environment: Mapping[str, str],
    place: tuple[str, Callable[[], None]],
    streams: tuple[int, int],
    limit_s: float,
) -> tuple[int, bool]:
    """Its exit code, and whether it had to be ended."""
    folder, enter = place
    read, log = streams
    before = set(descendants(os.getpid()))
    process = subprocess.Popen(
        words,
        env=dict(environment),
        cwd=folder,
        stdin=read,
        stdout=log,
        stderr=log,
        start_new_session=True,
        preexec_fn=enter,  # noqa: PLW1509 - it calls the kernel only
    )
    is_late = False
    try:
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            is_late = True
    finally:
        _end(process, before)
    return process.returncode, is_late


# [Note: who ends a run whose command was killed outright]
# The kernel ends a child of a killed process if that child asked for it. Workers of torchrun, their loader workers and whatever
# else a script starts do not ask. So one process of ours stays above the script, adopts all that it leaves, and ends them.


def _stay_above(parent: int) -> None:
    """Fork. The child goes on as the script; this process waits for it, and ends all below it when `parent` is gone."""
    adopt_orphans()
    own = os.getpid()
    script = os.fork()
    if script == 0:
        os.setsid()
        die_with_parent(own)
        return
    # Nothing may come from here into the code that runs behind the fork in the parent.
    try:
        for one in ENDING:
            signal.signal(one, signal.SIG_IGN)
        signal.signal(signal.SIGUSR1, lambda *_: _end_orphans(own, parent))
        set_parent_death_signal(signal.SIGUSR1)
        _end_orphans(own, parent)
        # The command waits until the script's pipe is closed.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        _end_as(_wait_for(script))
    finally:
        os._exit(1)


def _end_orphans(own: int, parent: int) -> None:
    """End all below, and this process, if the parent is gone."""
    if os.getppid() != parent:
        while left := descendants(own):
            kill(left)
            time.sleep(LOOK_S)
        os._exit(128 + signal.SIGKILL)


def _wait_for(script: int) -> int:
    """Its exit code; -N where signal N ended it."""
    while True:
        found, status = os.wait()
        if found == script:
            return os.waitstatus_to_exitcode(status)


def _end_as(code: int) -> NoReturn:
    """End in the same way, without another core file."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if code != -signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _end(process: subprocess.Popen[bytes], before: set[int]) -> None:
    """End what is left of a run: first as its user would, then outright."""
    for number, limit_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        until_s = time.monotonic() + limit_s
        left = set(descendants(os.getpid())) - before
        for one in left:
            with suppress(ProcessLookupError):
                os.kill(one, number)
        while left and time.monotonic() < until_s:
            process.poll()
            for one in left - {process.pid}:
                with suppress(ChildProcessError):
                    os.waitpid(one, os.WNOHANG)
            left = set(descendants(os.getpid())) - before
            time.sleep(LOOK_S if left else 0)
        if not left:
            break
    if process.returncode is None:
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
