"""The picture of the guide to verify: the same training on 1, 2 and 4 ranks, under plain DDP and under samebits, and a planted bug.

    python docs/pictures/drift.py              draws drift.png from drift.json
    python docs/pictures/drift.py --measure    trains and verifies again first (a minute on two cores)

Needs matplotlib: pip install ".[plot,examples]". What is trained: digits_both_ways.py.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from PIL import Image

HERE = Path(__file__).parent
SCRIPT = HERE / "digits_both_ways.py"
RANKS = ("1", "2", "4")
COLOURS = {
    "1": "#0072B2",
    "2": "#E69F00",
    "4": "#009E73",
    "bug": "#CC79A7",
}  # Okabe and Ito's, safe for colour-blind eyes
INK, FAINT = "#24292f", "#8c959f"
WINDOW = 9
"""Steps in the running mean of a curve."""


def measure() -> dict[str, Any]:
    """Train on each number of ranks in both ways; the losses of all steps, and what verify says to the bug."""
    found = {way: {ranks: losses_of(ranks, way) for ranks in RANKS} for way in ("ddp", "samebits")}
    with tempfile.TemporaryDirectory() as place:
        arguments = ["verify", "--ranks", "1,2", "--steps", "20", str(SCRIPT), "samebits", "--bug"]
        verify = subprocess.run(samebits(*arguments), cwd=place, capture_output=True, text=True, check=False)
    bug = {"ddp on 2 ranks": losses_of("2", "ddp", "--bug"), "verify": verify.stdout.splitlines()}
    return {**found, "bug": bug}


def losses_of(ranks: str, *arguments: str) -> list[float]:
    with tempfile.TemporaryDirectory() as place:
        command = samebits("run", "-q", "-n", ranks, "--threads", "1", str(SCRIPT), *arguments)
        subprocess.run(command, cwd=place, check=True)
        return json.loads((Path(place) / "losses.json").read_text())


def samebits(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "samebits", *arguments]


def smooth(losses: list[float]) -> list[float]:
    """The mean over the last WINDOW steps, from the first step that has as many."""
    return [sum(losses[end - WINDOW : end]) / WINDOW for end in range(WINDOW, len(losses) + 1)]


def draw(found: dict[str, Any], target: Path) -> None:
    mpl.rcParams.update({"font.family": "DejaVu Sans", "font.size": 11, "text.color": INK, "axes.labelcolor": INK})
    figure, (top, bottom) = plt.subplots(2, 2, figsize=(12, 8), dpi=120, facecolor="white")
    top[1].sharey(top[0])
    bottom[0].sharey(top[0])
    ddp, ours, bug = found["ddp"], found["samebits"], found["bug"]

    curves(top[0], "Plain DDP", "same data, seed and global batch: three models")
    for ranks in RANKS:
        line(top[0], ddp[ranks], COLOURS[ranks], label=name(ranks))

    same = ours["1"] == ours["2"] == ours["4"]
    curves(top[1], "samebits", f"1, 2 and 4 ranks: {'one line, equal to the last bit' if same else 'not equal'}")
    for ranks, width in zip(RANKS, (6.5, 3.6, 1.3), strict=True):
        line(top[1], ours[ranks], COLOURS[ranks], label=name(ranks), linewidth=width)

    curves(
        bottom[0], "Plain DDP, one of these has a bug", "its gradients are twice too large, and its curve looks fine"
    )
    for ranks in RANKS:
        line(bottom[0], ddp[ranks], FAINT, label="1, 2, 4 ranks" if ranks == "1" else None, linewidth=1.6)
    line(bottom[0], bug["ddp on 2 ranks"], COLOURS["bug"], label="2 ranks, loss × 2 (the bug)", linewidth=2.2)

    for axes in (top[0], top[1], bottom[0]):
        axes.legend(frameon=False, loc="upper right", handlelength=1.8)
    told(bottom[1], bug["verify"])
    figure.tight_layout(h_pad=2.6, w_pad=2.4)
    figure.canvas.draw()
    picture = Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")
    picture.quantize(96, dither=Image.Dither.NONE).save(target, optimize=True)  # few colours: a third of the bytes
    plt.close(figure)


def name(ranks: str) -> str:
    return f"{ranks} rank{'s' if ranks != '1' else ''}"


def curves(axes: Axes, title: str, subtitle: str) -> None:
    """An empty panel for loss curves; all have the same axes."""
    heading(axes, title, subtitle)
    axes.set_yscale("log")
    axes.set_ylim(0.03, 2.2)
    axes.set_xlim(0, 94)
    axes.set_yticks([0.03, 0.1, 0.3, 1], ["0.03", "0.1", "0.3", "1"])
    axes.minorticks_off()
    axes.set_xlabel("step")
    axes.set_ylabel(f"training loss, mean of {WINDOW} steps")
    axes.grid(axis="y", color="#d8dee4", linewidth=0.8)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0, colors=INK)


def heading(axes: Axes, title: str, subtitle: str) -> None:
    axes.text(0, 1.115, title, transform=axes.transAxes, fontsize=14, fontweight="bold")
    axes.text(0, 1.04, subtitle, transform=axes.transAxes, fontsize=11, color="#57606a")


def line(axes: Axes, losses: list[float], colour: str, **look: Any) -> None:
    axes.plot(range(WINDOW, len(losses) + 1), smooth(losses), color=colour, **{"linewidth": 2.0, **look})


def told(axes: Axes, said: list[str]) -> None:
    """What verify printed about the same bug, shortened to what differs and why."""
    heading(axes, "samebits verify, the same bug", "compares every bit and says what it is")
    axes.set_axis_off()
    axes.add_patch(plt.Rectangle((0, 0), 1, 1, transform=axes.transAxes, facecolor="#f6f8fa", edgecolor="#d0d7de"))
    text = "\n".join(["$ samebits verify --ranks 1,2 \\", "    digits_both_ways.py samebits --bug", "", *excerpt(said)])
    look = {"family": "DejaVu Sans Mono", "fontsize": 9.2, "linespacing": 1.42, "va": "top"}
    axes.text(0.035, 0.95, text, transform=axes.transAxes, **look)


def excerpt(said: list[str]) -> list[str]:
    """The rows of losses, gradients and parameters, the first difference, and its usual cause."""
    rows = [row.rstrip() for row in said if re.match(r"what|losses|gradients|parameters", row)]
    whole = " ".join(row.strip() for row in said)
    first = re.search(r"(First difference: .*? ranks\.)", whole)
    values = re.search(r"(1 rank: [\d.]+; 2 ranks: [\d.]+ \(ratio [\d.]+\))", whole)
    cause = re.search(r"(Usual cause: .*?`world_size`\.)", whole)
    if not (first and values and cause):
        raise SystemExit("verify did not find the planted bug; see its output in drift.json")
    numbers = re.sub(r"\d+\.\d{5,}", lambda number: f"{float(number[0]):.6f}", values[1])
    paragraphs = [first[1], numbers, cause[1]]
    return [*rows, "", *(part for text in paragraphs for part in textwrap.wrap(text, 56))]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", action="store_true", help="train and verify again, and write drift.json")
    parser.add_argument("--target", type=Path, default=HERE / "drift.png")
    options = parser.parse_args()
    if options.measure:
        (HERE / "drift.json").write_text(json.dumps(measure(), indent=1) + "\n")
    draw(json.loads((HERE / "drift.json").read_text()), options.target)
