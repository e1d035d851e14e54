"""Twenty ranks of a run are killed while it trains on 4, 1, 3 and 2 ranks; its losses and bits are those of a quiet run.

    python examples/killed_at_random.py                        about a minute on two cores
    python examples/killed_at_random.py --plot killed.png      draws both runs (pip install ".[plot]")

It trains `digits.py` twice: once undisturbed on 2 ranks, and once in four legs. Each leg but the last is stopped by
SIGTERM, which saves the run; the same command with another -n goes on from there. The kills are SIGKILL, at random
instants, of random ranks. The exit code is 0 when both runs end with the same bits.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samebits.protocol.journal.ring import JournalReader

DIGITS = Path(__file__).with_name("digits.py")
LEGS = (4, 1, 3, 2)
STEPS_PER_EPOCH = 23
LOOK_S = 0.01


@dataclass
class Run:
    """A run of `digits.py`, and what it told over all its legs."""

    place: Path
    """The working directory."""
    name: str
    epochs: int
    losses: dict[int, float] = field(default_factory=dict)
    """By step."""
    kills: list[tuple[int, int]] = field(default_factory=list)
    """Step and rank."""
    legs: list[tuple[int, int]] = field(default_factory=list)
    """The last step of each leg, and on how many ranks it was."""
    bits: str = ""

    def leg(self, ranks: int, last: int, kills: list[tuple[int, int]]) -> None:
        """Train on `ranks` ranks until step `last` is over.

        Args:
            ranks: on how many.
            last: the step after which the run is saved and stopped; after its very last one it ends by itself.
            kills: a step and a rank each; the rank is killed once that step was seen.
        """
        print(
            f"{self.name}: {ranks} rank{'s' if ranks > 1 else ''}, from step {max(self.losses, default=0)}", flush=True
        )
        is_last = last == self.epochs * STEPS_PER_EPOCH
        command = [sys.executable, "-m", "samebits", "run", "-q", "--name", self.name, "--save-every", "epoch"]
        command += ["-n", str(ranks), "--max-restarts", "1000", str(DIGITS), "--epochs", str(self.epochs)]
        before = self._folders()
        with subprocess.Popen(command, cwd=self.place, stdout=subprocess.DEVNULL) as launcher:
            folder = None
            while launcher.poll() is None:
                time.sleep(LOOK_S)
                folder = folder or next(iter(self._folders() - before), None)
                step = self._read(folder) if folder else 0
                if folder and kills and step >= kills[0][0]:
                    _, rank = kills.pop(0)
                    if kill(folder / "journal" / f"rank-{rank:05d}.ring"):
                        self.kills.append((step, rank))
                        print(f"  step {step:3d}: rank {rank} killed", flush=True)
                elif not is_last and step >= last:
                    launcher.send_signal(signal.SIGTERM)
                    break
        if folder is None or launcher.returncode != (0 if is_last else 128 + signal.SIGTERM):
            raise SystemExit(f"the run ended with exit code {launcher.returncode}")
        self.legs.append((self._read(folder), ranks))
        if is_last:
            self.bits = json.loads((folder / "result.json").read_text())["bits"]

    def _folders(self) -> set[Path]:
        return {found.parent for found in self.place.glob(f"samebits-runs/{self.name}/*/journal")}

    def _read(self, folder: Path) -> int:
        """Take the losses that are there; return the newest step."""
        metrics = folder / "metrics.jsonl"
        text = metrics.read_text() if metrics.exists() else ""
        lines = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        found = {line["step"]: line["loss"] for line in lines if "loss" in line}
        self.losses.update(found)
        return max(found, default=0)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, help="of the kills; without it, each time others")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw both runs, as PNG or SVG")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    num_steps = options.epochs * STEPS_PER_EPOCH
    if not 0 <= options.kills <= num_steps // 2:
        parser.error(f"--kills must be between 0 and {num_steps // 2}, half of the steps")

    with tempfile.TemporaryDirectory(prefix="killed-at-random-") as folder:
        quiet, killed = (Run(Path(folder), name, options.epochs) for name in ("quiet", "killed"))
        quiet.leg(2, num_steps, [])
        instants = sorted(chance.sample(range(2, num_steps - 1), options.kills))
        for number, ranks in enumerate(LEGS, 1):
            first, last = (num_steps * end // len(LEGS) for end in (number - 1, number))
            killed.leg(ranks, last, [(step, chance.randrange(ranks)) for step in instants if first < step <= last])
    same = quiet.bits == killed.bits and quiet.losses == killed.losses
    path = " -> ".join(map(str, LEGS))
    print(f"\n{'2 ranks, undisturbed':34}{len(quiet.losses)} steps  {quiet.bits}")
    print(f"{f'{path} ranks, {len(killed.kills)} kills':34}{len(killed.losses)} steps  {killed.bits}")
    print("every loss and every bit is equal" if same else "THE RUNS DIFFER")
    if options.plot:
        draw(quiet, killed, options.plot)
    return 0 if same else 1


def kill(journal: Path) -> bool:
    """Kill the rank that keeps this journal."""
    try:
        if pid := JournalReader(journal).pid:
            os.kill(pid, signal.SIGKILL)
        return bool(pid)
    except (OSError, ValueError):  # it was starting, or has just ended
        return False


def draw(quiet: Run, killed: Run, target: Path) -> None:
    """One panel: both losses, the kills on them, and the number of ranks behind them."""
    import matplotlib as mpl  # noqa: PLC0415 - an extra, needed for --plot only
    from matplotlib import pyplot as plt  # noqa: PLC0415

    ink, faint, blue, orange, red = "#24292f", "#57606a", "#0072B2", "#E69F00", "#D55E00"
    mpl.rcParams.update({"font.family": "DejaVu Sans", "font.size": 11, "text.color": ink, "axes.labelcolor": ink})
    figure, axes = plt.subplots(figsize=(12, 4.6), dpi=120)
    steps = sorted(killed.losses)
    axes.plot(
        sorted(quiet.losses),
        [quiet.losses[step] for step in sorted(quiet.losses)],
        color=blue,
        linewidth=5.5,
        label="2 ranks, undisturbed",
    )
    axes.plot(
        steps,
        [killed.losses[step] for step in steps],
        color=orange,
        linewidth=1.6,
        label=f"{' → '.join(map(str, LEGS))} ranks, stopped and killed",
    )
    axes.plot(
        [step for step, _ in killed.kills],
        [killed.losses[step] for step, _ in killed.kills],
        "x",
        color=red,
        markersize=9,
        markeredgewidth=2.2,
        label=f"a rank killed ({len(killed.kills)} times)",
        zorder=3,
    )
    _shade_legs(axes, killed, faint)
    same = quiet.bits == killed.bits
    hashes = quiet.bits[:19] if same else f"{quiet.bits[:19]} against {killed.bits[:19]}"
    axes.set_title(
        f"Killed at random: {'the same losses, the same bits' if same else 'OTHER BITS'}   ({hashes}…)",
        loc="left",
        fontsize=13,
        fontweight="bold",
        pad=12,
    )
    axes.set(yscale="log", xlim=(0, killed.legs[-1][0]), xlabel="step", ylabel="training loss")
    axes.grid(axis="y", color="#d8dee4", linewidth=0.8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0, which="both", colors=ink)
    axes.legend(frameon=False, loc="upper right")
    figure.tight_layout()
    figure.savefig(target)


def _shade_legs(axes: Any, killed: Run, ink: str) -> None:
    """Say behind the lines how many ranks there were."""
    begin = 0
    for number, (end, ranks) in enumerate(killed.legs):
        axes.axvspan(begin, end, color="#eaeef2" if number % 2 == 0 else "white", zorder=0)
        words, middle = f"{ranks} rank{'s' if ranks > 1 else ''}", (begin + end) / 2
        axes.text(middle, 0.03, words, transform=axes.get_xaxis_transform(), ha="center", color=ink)
        begin = end


if __name__ == "__main__":
    sys.exit(main())
