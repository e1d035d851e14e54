"""The demo: the same training twice, once undisturbed on one rank, once on several ranks that the user may kill.

Both runs are ordinary ones, with run folders of their own that `samebits report` reads.

Runs in: the command's first thread; with `--auto` a daemon thread kills ranks.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from samebits.errors import UsageError
from samebits.launcher.choices import NO_LIMIT, Recover, Recovery
from samebits.launcher.folder import reserve_run_folder
from samebits.launcher.launcher import launch
from samebits.launcher.nursery.handle import NurseryHandle
from samebits.launcher.nursery.kept import modules_for
from samebits.launcher.request import Computation, EntryPoint, LaunchRequest, Output, Placement
from samebits.launcher.terminal.terminal import Terminal
from samebits.machine.torch_versions import release
from samebits.protocol.arithmetic import Arithmetic
from samebits.protocol.events import Kind, of_kind
from samebits.protocol.portable import portable_variables
from samebits.show.live import LiveRun
from samebits.show.run_data import RunData
from samebits.show.server import kill_process

SCRIPT = Path(__file__).with_name("train.py")
STEPS = 276
PAUSE_S = 0.05
"""In each step of the run that may be killed: an undisturbed one would be over before anybody has found the button."""
AUTO_STEPS = (40, 110, 180)
"""Where `--auto` kills a rank, one after the other."""
HEADING = "Kill a rank. The bits stay."
WORDS = "A rank is one process of a training. The bits are all digits of all weights, in one hash."
EVERYWHERE = dict.fromkeys(("2.11.0", "2.12.1", "2.13.0", "2.14.1"), "1ed1f7d60bcc")
"""The beginning of the demo's hash on every x86-64 CPU, by torch's version: under numerics="portable". These have the same one."""


def portable_here() -> dict[str, str]:
    """The variables of numerics="portable" where this machine and installation can have it, and the hash is known; else none."""
    try:
        return portable_variables(os.environ) if _torch_version() in EVERYWHERE else {}
    except UsageError:
        return {}


def _torch_version() -> str:
    return release(metadata.version("torch"))


@dataclass
class Demo:
    """The two runs, and what a page shows of them at any time.

    Args:
        ranks: of the run that may be killed.
        base: the folder of all run folders.
        auto: whether ranks are killed without a person, one after the other, rank 0 among them.
    """

    ranks: int
    base: Path
    auto: bool = False
    _settings: Mapping[str, str] = field(default_factory=portable_here)
    _undisturbed: LiveRun | None = None
    _run: LiveRun | None = None
    _reference: dict[str, Any] | None = None
    _is_over: bool = False

    def run(self, terminal: Terminal | None, say: Callable[[str], None]) -> bool:
        """Train twice; whether the bits are equal.

        Args:
            terminal: where the second run is shown.
            say: prints a line.
        """
        try:
            same = self._train(terminal, say)
        finally:
            self._is_over = True
        return same

    def _train(self, terminal: Terminal | None, say: Callable[[str], None]) -> bool:
        first = self._request("demo-undisturbed", 1, ())
        with NurseryHandle(first.placement.threads, modules_for(first), self._settings) as nursery:
            say("demo      first an undisturbed run, on 1 rank")
            self._undisturbed, before = LiveRun(first.output.run_folder), launch(first, None, nursery)
            undisturbed = self._undisturbed.data
            loss = undisturbed.curves.loss
            if before.exit_code or loss is None:
                say(before.block)
                return False
            steps, values = loss.thinned()
            self._reference = {"steps": steps, "values": values, "bits": undisturbed.summary.get("bits", "")}
            second = self._request("demo", self.ranks, (str(PAUSE_S),))
            say(f"demo      now {self.ranks} ranks: kill any of them, as often as you like")
            self._run = LiveRun(second.output.run_folder)
            stop = threading.Event()
            if self.auto:
                threading.Thread(target=self._kill_some, args=(self._run, stop), daemon=True).start()
            try:
                outcome = launch(second, terminal, nursery)
            finally:
                stop.set()
        if outcome.exit_code:
            return False
        banner = self._banner(self._run.data)
        say(f"demo      {banner['text']}")
        for line in banner["lines"]:
            say(f"          {line}")
        return bool(banner["ok"])

    def _request(self, title: str, ranks: int, args: tuple[str, ...]) -> LaunchRequest:
        folder = reserve_run_folder(self.base, None, title, datetime.now().astimezone())
        recovery = Recovery(Recover.AUTO, max_restarts=NO_LIMIT, forgives_kills=True)
        entry, placement = EntryPoint(SCRIPT, args=args), Placement(ranks, 1, "cpu", threads_given=True)
        computation = Computation(arithmetic=Arithmetic(numerics="portable" if self._settings else "exact"))
        return LaunchRequest(entry, placement, Output(folder), computation, recovery)

    def kill(self, rank: int) -> None:
        """End a rank of the second run because somebody asks for it on the page."""
        if self._run is not None and self._kill(rank):
            self._run.killed[rank] = time.time()

    def _kill(self, rank: int) -> bool:
        """End a rank of the second run, as `kill -9` does; False where it does not run."""
        pid = self._run.pid_of(rank) if self._run is not None else 0
        if pid:
            kill_process(pid)
        return bool(pid)

    def _kill_some(self, run: LiveRun, stop: threading.Event) -> None:
        victims = [0, *random.sample(range(self.ranks), min(2, self.ranks))]
        for step, rank in zip(AUTO_STEPS, victims, strict=False):
            while not stop.wait(0.1):
                if run.step >= step:
                    self._kill(rank)
                    break

    def state(self) -> dict[str, Any]:
        """What the page shows now."""
        run = self._run or self._undisturbed
        state = run.state() if run is not None else {"ranks": []}
        step = max((row["step"] for row in state["ranks"]), default=0)
        state |= {
            "heading": HEADING,
            "intro": [self._intro, WORDS],
            "stages": self._stages(step),
            "done": step / STEPS if step else None,
            "kills": self._run is not None,
            "reference": self._reference,
            "is_over": self._is_over,
        }
        if self._run is not None:
            state["note"] = f"samebits report {self._run.path.name} writes this run into one file."
        if self._run is not None and self._is_over and not state["story"]["is_bad"]:
            state["banner"] = self._banner(self._run.data)
        return state

    @property
    def _intro(self) -> str:
        killed = "some of them are killed" if self.auto else "you kill them, as often as you like"
        return (
            "Two trainings of the same small network: first on one process, undisturbed (about 10 s), then on "
            f"{self.ranks}, and {killed}. At the end: are all weights equal, to the last bit?"
        )

    def _stages(self, step: int) -> list[dict[str, str]]:
        """The three parts of the demo, and which of them is under way."""
        now = 2 if self._is_over else 1 if self._run is not None else 0
        names = ["undisturbed run", "run with kills", "compare the bits"]
        if now < 2:
            names[now] += f": step {step} of {STEPS}" if step else ": importing torch, a few seconds"
        states = ["done" if part < now or self._is_over else "now" if part == now else "next" for part in range(3)]
        return [{"name": name, "state": state} for name, state in zip(names, states, strict=True)]

    def _banner(self, data: RunData) -> dict[str, Any]:
        """How the second run compares with the first."""
        bits, expected = str(data.summary.get("bits") or "none"), str((self._reference or {}).get("bits"))
        everywhere = EVERYWHERE[_torch_version()] if self._settings else ""
        num_kills = len(of_kind(data.events, Kind.KILL))
        same = bits == expected and bits.removeprefix("sha256:").startswith(everywhere)
        kills = f"{num_kills} kill{'s' * (num_kills != 1)}"
        rows = [("undisturbed", expected, ""), ("this run", bits, "")]
        if everywhere:
            rows.append(
                ("everywhere", f"sha256:{everywhere}", f"…, on any x86-64 CPU with AVX2 (torch {_torch_version()})")
            )
        return {
            "ok": same,
            "text": f"{kills}, the same weights to the last bit." if same else f"{kills}, and OTHER BITS.",
            "rows": [
                {"label": label, "hash": found.removeprefix("sha256:"), "note": note} for label, found, note in rows
            ],
            "lines": [f"{label:<13}{found}{note}" for label, found, note in rows],
        }
