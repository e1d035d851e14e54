"""One training, over as many launches as it takes, that is disturbed at random moments, and what is to be right at its end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.faults.trial import marked
from benchmarks.kills.notes import NOTES, Notes
from samebits.protocol.record.reading import read_record

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).with_name("scripts")
MARK = "KILLS_MARK"
LOOK_S = 0.003
PATIENCE_S = 120.0
ONE_PLACE_TWICE = "the same failure at the same step would come back"
"""How a run ends, as documented, when one rank is lost at one place twice; the same command is started again."""
BEGINS_BEFORE = ("are computed again. Another name", "there is no state yet", "the last state is of step")
"""What a launcher says that was stopped without a new state: the same command computes steps again."""
INTEGRATED = ("accelerated", "trained")
"""Where the ranks must divide the lanes."""
TARGETS = {"rank": 16, "loader worker or writer": 6, "two ranks": 2, "rank, and one in the restart": 3}
STOPS = {"told to end (SIGTERM)": 4, "told to end (SIGINT)": 3, "launcher killed": 3}
SIGNALS = {"told to end (SIGTERM)": 15, "told to end (SIGINT)": 2, "launcher killed": 9}


@dataclass
class Training:
    """It.

    Args:
        place: an empty folder.
        script: one of `scripts`, without `.py`.
        steps: about how many.
        chance: draws ranks, options, moments and targets.
    """

    place: Path
    script: str
    steps: int
    chance: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    """Of what was done to it."""
    lost_at: list[float] = field(default_factory=list)
    ranks: list[str] = field(default_factory=list)
    """How each launch was started."""
    output: str = ""
    left: list[str] = field(default_factory=list)
    """What a launch left behind."""
    _mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    _began: int = 0
    """Where the output of the last launch does."""
    _seen: set[int] = field(default_factory=set)
    _repeats: bool = False
    """Whether steps after the newest state may be computed again: a launcher was killed, or the run was stopped without a new state."""

    def run(self, kills: int = 0, stops: int = 0, about_s: float = 5.0) -> float:
        """Start it as often as it takes.

        Args:
            kills: in all; `stops` of the launcher.
            about_s: how long it takes undisturbed.

        Returns:
            The seconds that it took.

        Raises:
            AssertionError: for an exit code that nobody asked for, or when it does not end.
        """
        began = time.monotonic()
        for folder in ("notes", "temporary"):
            (self.place / folder).mkdir()
        for left in range(stops, -1, -1):
            here = kills // (left + 1)
            kills -= here
            if self._launch(here, stop=left > 0, about_s=about_s, names=stops > 0) == 0:
                break
        while ONE_PLACE_TWICE in self.output[self._began :]:
            self._launch(0, stop=False, about_s=about_s, names=stops > 0)
        return time.monotonic() - began

    # One launch

    def _command(self, names: bool) -> list[str]:
        ranks = self.chance.choice((1, 2, 4)) if self.script in INTEGRATED else self.chance.randint(1, 4)
        words = ["run", "-n", str(ranks), "--max-restarts", "1000", "--record"]
        strategies = ["auto"]
        if self.script == "layered":
            strategies = ["auto", "zero1", "model_parallel", "pipeline"]
        elif self.script not in ("adversarial", "penalized", "taught", "gpt", *INTEGRATED):
            strategies = ["auto", "auto", "zero1"]
        if self.script == "layered" and ranks == 4 and self.chance.random() < 0.3:
            strategies, words = ["auto"], [*words, "--mesh", "pipeline=2,ddp=2"]
        if (strategy := self.chance.choice(strategies)) != "auto" and ranks > 1:
            words += ["--strategy", strategy]
        if names or self.chance.random() < 0.4:
            words += ["--name", "it", "--save-every", self.chance.choice(["epoch", "7steps", "30steps"])]
        self.ranks.append(" ".join(words[1:]))
        return [sys.executable, "-m", "samebits", *words, str(SCRIPTS / f"{self.script}.py"), str(self.steps)]

    def _launch(self, kills: int, *, stop: bool, about_s: float, names: bool) -> int:
        path = os.pathsep.join(filter(None, (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH"))))
        own = {MARK: self._mark, NOTES: str(self.place / "notes"), "TMPDIR": str(self.place / "temporary")}
        began = time.monotonic()
        moments = sorted(began + self.chance.uniform(0.3, about_s) for _ in range(kills))
        stop_at = began + self.chance.uniform(0.3, about_s) if stop else float("inf")
        asked, lost_before = 0, len(self.lost_at)
        with (self.place / "output.txt").open("ab") as output:
            launcher = subprocess.Popen(
                self._command(names),
                cwd=self.place,
                env=os.environ | own | {"PYTHONPATH": path},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            self._seen.add(launcher.pid)
            while launcher.poll() is None:
                time.sleep(LOOK_S)
                now = time.monotonic()
                if moments and now >= moments[0] and self._kill(launcher.pid):
                    del moments[0]
                if not asked and now >= stop_at:
                    kind = self.chance.choices(list(STOPS), list(STOPS.values()))[0]
                    asked = SIGNALS[kind]
                    launcher.send_signal(asked)
                    self.counts[kind] += 1
                    self._repeats |= asked == signal.SIGKILL
                if now > began + PATIENCE_S:
                    self.output = self._output()
                    subprocess.run(["ps", "-ef"], check=False, stdout=(self.place / "hung.txt").open("w"))
                    launcher.kill()
                    raise AssertionError(f"it does not end: {self.ranks[-1]}")
        code, self._began = launcher.returncode, len(self.output)
        self.output = self._output()
        self._repeats |= any(said in self.output[self._began :] for said in BEGINS_BEFORE)
        if ONE_PLACE_TWICE in self.output[self._began :]:
            self.counts["(ended: one place twice)"] += 1
            self._repeats = True
            return code
        if asked and code in {-asked, 128 + asked}:
            del self.lost_at[lost_before:]  # the way back may be one of the next launch
            self._look_for_rest()
            return code
        if code:
            raise AssertionError(f"exit code {code} of {self.ranks[-1]}")
        return 0

    def _output(self) -> str:
        return (self.place / "output.txt").read_text(errors="replace")

    # What is done to it

    def _kill(self, launcher: int) -> bool:
        """Kill what is drawn, if it is there; whether it was."""
        ranks = [rank for nursery in _children(launcher) for rank in _children(nursery)]
        if not ranks:
            return False
        kind = self.chance.choices(list(TARGETS), list(TARGETS.values()))[0]
        if kind == "loader worker or writer":
            pids = [child for rank in ranks for child in _children(rank)]
            if not pids:
                kind, pids = "rank", ranks
        else:
            pids = ranks
        self._seen.update(ranks, pids)
        wanted = 2 if kind == "two ranks" else 1
        self.lost_at.append(time.monotonic())
        for pid in self.chance.sample(pids, min(wanted, len(pids))):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.counts[kind] += 1
        if kind == "rank, and one in the restart":
            self._kill_in_restart(launcher, set(ranks))
        return True

    def _kill_in_restart(self, launcher: int, before: set[int]) -> None:
        until = time.monotonic() + 3.0
        while time.monotonic() < until:
            new = [rank for nursery in _children(launcher) for rank in _children(nursery) if rank not in before]
            if new:
                self._seen.update(new)
                time.sleep(self.chance.uniform(0.0, 0.3))
                with suppress(ProcessLookupError):
                    os.kill(self.chance.choice(new), signal.SIGKILL)
                self.lost_at.append(time.monotonic())
                self.counts["(the one in the restart)"] += 1
                return
            time.sleep(LOOK_S)

    # What is to be right

    def _look_for_rest(self) -> None:
        until = time.monotonic() + 3.0
        while (found := marked(f"{MARK}={self._mark}")) and time.monotonic() < until:
            time.sleep(0.05)
        pids = {str(pid) for pid in self._seen}
        memory = [
            path.name for path in Path("/dev/shm").iterdir() if pids & set(path.name.replace("_", "-").split("-"))
        ]
        files = [
            path.name for path in (self.place / "temporary").iterdir() if not path.name.startswith("torchinductor_")
        ]
        self.left += [f"process {pid}" for pid in found] + memory + files

    def notes(self) -> Notes:
        return Notes.read(self.place / "notes")

    def logged(self) -> list[dict[str, Any]]:
        """All that `run.log` kept, without times; after a killed launcher, its last word about each step."""
        files = sorted(
            self.place.glob("samebits-runs/**/metrics.jsonl"), key=lambda file: file.parent.stat().st_ctime_ns
        )
        files.sort(key=lambda file: file.parent.name)
        lines: list[dict[str, Any]] = []
        for file in files:
            text = file.read_text()
            here = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
            for line in here:
                line.pop("time", None)
            if self._repeats and here:
                lines = [line for line in lines if line["step"] < here[0]["step"]]
            lines += here
        return lines

    def result(self) -> dict[str, Any]:
        """Its weights and its whole state at the end."""
        files = sorted(self.place.glob("samebits-runs/**/result.json"), key=lambda file: file.parent.name)
        words = [sys.executable, "-m", "samebits", "checkpoint", "ls", "end", "--json"]
        own = {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))}
        found = subprocess.run(words, cwd=self.place, env=os.environ | own, capture_output=True, check=True)
        result = json.loads(files[-1].read_text())
        return {
            "bits": result["bits"],
            "state": json.loads(found.stdout)[0]["sha256"],
            "once": "each once" in result["samples"] or not result["steps"],
        }

    def record(self) -> Path:
        """The newest one."""
        return max(self.place.glob("samebits-runs/**/record.jsonl"), key=lambda file: file.stat().st_mtime_ns)

    def audit(self) -> int:
        """Check it on other ranks; how many segments were made again.

        Raises:
            AssertionError: when it is no match.
        """
        ranks = self.chance.choice((1, 2, 4)) if self.script in INTEGRATED else self.chance.randint(1, 4)
        words = [sys.executable, "-m", "samebits", "audit", "-q", "--json", "-n", str(ranks), str(self.record())]
        words += [str(SCRIPTS / f"{self.script}.py"), str(self.steps)]
        path = os.pathsep.join(filter(None, (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH"))))
        variables = os.environ | {"PYTHONPATH": path}
        ended = subprocess.run(words, cwd=self.place, env=variables, capture_output=True, text=True, check=False)
        assert not ended.returncode, f"audited on {ranks} ranks: {ended.stdout}{ended.stderr}"
        return len(json.loads(ended.stdout)["segments"])

    def check(self, quiet: Training) -> None:
        """Whether it is the other one, to the last bit, and nothing is left behind.

        Raises:
            AssertionError: with what is not.
        """
        self._look_for_rest()
        self.check_bits(quiet)
        assert not self.left, f"left behind: {sorted(set(self.left))}"

    def check_bits(self, quiet: Training) -> None:
        """All but what is left behind."""
        mine, other = self.logged(), quiet.logged()
        here, there = read_record(self.record()), read_record(quiet.record())
        assert not (here.broken or here.differs or here.gaps), f"the record: {here.broken} {here.differs} {here.gaps}"
        assert here.link(here.last) == there.link(there.last), f"the record has other steps: {self.record()}"
        differing = [line for line in mine if line not in other]
        assert self.result() == quiet.result(), f"the end differs: {self.result()}, not {quiet.result()}"
        assert mine == other, f"{len(mine)} of {len(other)} lines are logged; of them differ {differing[:3]}"
        assert self.notes().samples == quiet.notes().samples, "a step had other samples"


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # it has just ended
        return []
