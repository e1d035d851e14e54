"""A run under faults: how much of its time is useful, and whether its bits stay the same.

    make soak                                    ten minutes of training, a fault every ten seconds
    python -m benchmarks.soak --minutes 2        less

The same training runs twice. The first run is left alone; its time is what is useful. The second one is disturbed at
random: a rank, its loader worker or the process that writes its states is killed, the launcher is killed, or the run is
told to end; then the same command goes on. The number of ranks stays, so that both run at one speed. Useful time is the first run's time over the
second's. The exit code is 0 when both end with the same bits and the same logged losses.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.ending import ends_shortly
from lockstep.journal.ring import JournalReader

SCRIPT = Path(__file__).with_name("soak_training.py")
FAULTS = {
    "rank killed": 14,
    "loader worker or writer killed": 3,
    "launcher killed": 1,
    "told to end": 2,
}
"""Out of twenty."""
LOOK_S = 0.05


@dataclass
class Training:
    """One run of the script, over as many launches as it takes."""

    place: Path
    name: str
    epochs: int
    chance: random.Random
    every_s: float
    """Seconds between two faults; 0: none."""
    ranks: int = 2
    faults: Counter[str] = field(default_factory=Counter)

    def run(self) -> float:
        """Train to the end; return the seconds that it took.

        Raises:
            SystemExit: when a launch ends in a way that nobody asked for.
        """
        began = time.monotonic()
        next_fault = began + self.every_s if self.every_s else float("inf")
        while True:
            asked = 0
            with self._launch() as launcher:
                while launcher.poll() is None:
                    time.sleep(LOOK_S)
                    if not asked and time.monotonic() >= next_fault:
                        asked = self._disturb(launcher)
                        next_fault += self.every_s
            if launcher.returncode not in {0, -signal.SIGKILL, 128 + signal.SIGTERM} or (
                launcher.returncode and not asked
            ):
                raise SystemExit(f"{self.name}: the launcher ended with exit code {launcher.returncode}")
            if not launcher.returncode:  # perhaps before the signal came
                break
        return time.monotonic() - began

    def _launch(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "lockstep", "run", "-q", "--name", self.name, "--save-every", "200steps"]
        command += ["-n", str(self.ranks), "--max-restarts", "100000", str(SCRIPT), str(self.epochs)]
        return subprocess.Popen(command, cwd=self.place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _disturb(self, launcher: subprocess.Popen[bytes]) -> int:
        """Do one thing to the run; return the signal that the launcher got, or 0."""
        kind = self.chance.choices(list(FAULTS), list(FAULTS.values()))[0]
        if kind in ("rank killed", "loader worker or writer killed"):
            pids = self._ranks()
            if kind != "rank killed":
                pids = [int(child) for pid in pids for child in _children(pid)]
            if not pids:
                return 0
            os.kill(self.chance.choice(pids), signal.SIGKILL)
            self.faults[kind] += 1
            return 0
        self.faults[kind] += 1
        if kind == "launcher killed":
            launcher.kill()
            return signal.SIGKILL
        launcher.terminate()
        return signal.SIGTERM

    def _ranks(self) -> list[int]:
        folder = self._newest()
        rings = sorted((folder / "journal").glob("*.ring")) if folder else []
        return [pid for ring in rings if (pid := JournalReader(ring).pid) and Path(f"/proc/{pid}").exists()]

    def _newest(self) -> Path | None:
        folders = [found.parent for found in self.place.glob(f"lockstep-runs/{self.name}/*/journal")]
        return max(folders, key=lambda folder: folder.stat().st_ctime_ns, default=None)

    def bits(self) -> str:
        """The hash of the weights at the end."""
        folder = self._newest()
        assert folder is not None
        return str(json.loads((folder / "result.json").read_text())["bits"])

    def losses(self) -> dict[int, float]:
        """By step; of what was logged twice, because a launch was killed, the last."""
        found = {}
        for metrics in sorted(self.place.glob(f"lockstep-runs/{self.name}/*/metrics.jsonl")):
            lines = [json.loads(line) for line in metrics.read_text().splitlines() if line.endswith("}")]
            found.update({line["step"]: line["loss"] for line in lines if "loss" in line})
        return found


def _children(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:  # it has just ended
        return []


@ends_shortly
def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="of undisturbed training, about")
    parser.add_argument("--every", type=float, default=10.0, metavar="SECONDS", help="between two faults")
    parser.add_argument("--seed", type=int, default=0, help="of the faults")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:

        def training(name: str, epochs: int, every_s: float) -> Training:
            return Training(Path(folder), name, epochs, random.Random(options.seed), every_s)

        trial_s = [training(f"trial-{epochs}", epochs, 0.0).run() for epochs in (5, 25)]
        epochs = max(round(options.minutes * 60 / ((trial_s[1] - trial_s[0]) / 20)), 5)
        print(f"{epochs} epochs, undisturbed ...", flush=True)
        quiet = training("quiet", epochs, 0.0)
        quiet_s = quiet.run()
        print(f"{quiet_s:.0f} s; now with a fault every {options.every:.0f} s ...", flush=True)
        disturbed = training("disturbed", epochs, options.every)
        disturbed_s = disturbed.run()
        same = quiet.bits() == disturbed.bits() and quiet.losses() == disturbed.losses()
    for kind in FAULTS:
        print(f"{kind:32}{disturbed.faults[kind]:4}")
    print(f"{'useful time':32}{quiet_s / disturbed_s:4.0%}   ({quiet_s:.0f} of {disturbed_s:.0f} s)")
    print(f"{'bits and losses':32}{'equal' if same else 'DIFFERENT'}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
