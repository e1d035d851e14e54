"""Hundreds of kills and stops at random moments: the same bits, samples and logs, and the time of the way back.

    python -m benchmarks.kills                           300 kills and 100 stops with a resume, on 1 to 4 ranks (half an hour)
    python -m benchmarks.kills --kills 20 --stops 5      less
    python -m benchmarks.kills --only gpt,kept --seed 3

Each run draws a script of `benchmarks/kills/scripts`, ranks, a strategy and whether states are saved, and gets a few
SIGKILLs: to a rank, two of them, one that is just starting again, a loader worker, the process that writes states. Others
are stopped instead (SIGTERM, SIGINT, or SIGKILL of the launcher), and the same command goes on with other ranks, killed
again. At the end of each: exit code 0, the bits, the whole state and the record of an undisturbed run, each line of `run.log`
once, the samples of each step, no process, shared memory or temporary file left. The exit code is 0 when all were so.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from benchmarks.ending import ends_shortly
from benchmarks.kills.disturbed import SCRIPTS, Training

STEPS = 120
PER_RUN = 4
"""Kills, at most."""


class Campaign:
    """All runs of it, and what came of them.

    Args:
        place: an empty folder; what failed stays in it.
        only: names of scripts.
        seed: of all that is drawn.
        audits: whether each run is checked on other ranks, by what it has recorded.
    """

    def __init__(self, place: Path, only: list[str], seed: int, *, audits: bool) -> None:
        self.place, self.only, self.chance, self.audits = place, only, random.Random(seed), audits
        self.quiet: dict[str, tuple[Training, float]] = {}
        self.counts: Counter[str] = Counter()
        self.back_s: list[float] = []
        self.failures: list[str] = []
        self.runs = self.segments = 0
        self.useful_s, self.all_s = 0.0, 0.0

    def one(self, kills: int, stops: int) -> None:
        """Disturb one run."""
        script = self.only[self.runs % len(self.only)]
        self.runs += 1
        quiet, quiet_s = self._undisturbed(script)
        training = self._training(f"{self.runs:04d}-{script}", script)
        try:
            self.all_s += training.run(kills, stops, quiet_s)
            self.useful_s += quiet_s
            notes = training.notes()
            back_s = [back for lost in training.lost_at if (back := notes.back_s(lost)) is not None]
            self.back_s += back_s
            training.check(quiet)
            if self.audits:
                self.segments += training.audit()
        except AssertionError as error:
            self.failures.append(f"{training.place}: {error}   [{' | '.join(training.ranks)}] {dict(training.counts)}")
            print(self.failures[-1], flush=True)
        else:
            training.place.with_suffix(".txt").write_text(training.output)
            shutil.rmtree(training.place)
        finally:
            self.counts += training.counts
        if training.place.exists():
            return
        print(
            f"{self.runs:4d} {script:12} {' | '.join(training.ranks)}  {dict(training.counts)}  {' '.join(f'{back:.2f} s' for back in back_s)}",
            flush=True,
        )

    def _undisturbed(self, script: str) -> tuple[Training, float]:
        if script not in self.quiet:
            quiet = self._training(f"quiet-{script}", script)
            self.quiet[script] = (quiet, quiet.run())
        return self.quiet[script]

    def _training(self, name: str, script: str) -> Training:
        place = self.place / name
        place.mkdir()
        return Training(place, script, STEPS, random.Random(self.chance.random()))

    @property
    def kills(self) -> int:
        return sum(
            number
            for kind, number in self.counts.items()
            if "told" not in kind and "launcher" not in kind and "ended" not in kind
        )

    @property
    def stops(self) -> int:
        return sum(number for kind, number in self.counts.items() if "told" in kind or "launcher" in kind)

    def report(self) -> str:
        """Counts, failures, and the times of the way back."""
        rows = [f"{kind:36}{number:5}" for kind, number in sorted(self.counts.items())]
        rows.append(f"{'runs':36}{self.runs:5}")
        if len(self.back_s) > 1:
            middle, high = statistics.median(self.back_s), statistics.quantiles(self.back_s, n=20)[-1]
            rows.append(
                f"{'back (end of the first new step)':36}{middle:5.2f} s median, {high:.2f} s p95, {max(self.back_s):.2f} s most, of {len(self.back_s)}"
            )
        rows += [f"{'segments audited':36}{self.segments:5}"] if self.audits else []
        rows.append(f"{'useful time':36}{self.useful_s / max(self.all_s, 1e-9):5.0%}")
        return "\n".join([*rows, f"{'failures':36}{len(self.failures):5}", *self.failures])


@ends_shortly
def main() -> int:
    every = sorted(path.stem for path in SCRIPTS.glob("*.py") if path.stem != "__init__")
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--stops", type=int, default=100)
    parser.add_argument("--only", type=lambda text: text.split(","), default=every, metavar="NAME,...")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--place", type=Path, help="an empty folder that keeps what was printed, and what failed")
    parser.add_argument("--audit", action="store_true", help="check each run on other ranks, by its record")
    options = parser.parse_args()
    place = options.place or Path(tempfile.mkdtemp(prefix="kills-"))
    place.mkdir(exist_ok=True)
    campaign, began = Campaign(place, options.only, options.seed, audits=options.audit), time.monotonic()
    with suppress(KeyboardInterrupt):
        while campaign.kills < options.kills or campaign.stops < options.stops:
            stops = campaign.chance.randint(1, 3) if campaign.chance.random() < 0.5 else 0
            stops = min(stops, options.stops - campaign.stops)
            kills = min(campaign.chance.randint(1, PER_RUN), options.kills - campaign.kills)
            campaign.one(max(kills, 0), max(stops, 0))
    print(f"\n{campaign.report()}\n{'it took':36}{time.monotonic() - began:5.0f} s")
    return 1 if campaign.failures else 0


if __name__ == "__main__":
    sys.exit(main())
